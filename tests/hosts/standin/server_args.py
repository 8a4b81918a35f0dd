"""Stands for SGLang's argument parser: the same names, a handful of flags."""

import argparse


class ServerArgs:
    """What SGLang's own would be made from."""

    @staticmethod
    def add_cli_args(parser):
        for flag in ("--model-path", "--host", "--served-model-name"):
            parser.add_argument(flag)
        parser.add_argument("--port", type=int, default=30000)

    @classmethod
    def from_cli_args(cls, parsed):
        raise RuntimeError("this would look at the GPU")


def prepare_server_args(argv):
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(argv))
