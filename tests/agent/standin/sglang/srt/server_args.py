"""Stands for SGLang's argument parser: the same names, a handful of flags."""

import argparse


class ServerArgs:
    """Refuses to be made: precheck must stop before SGLang would look at the GPU."""

    @staticmethod
    def add_cli_args(parser):
        for flag in ("--model-path", "--host", "--served-model-name", "--speculative-draft-model-path"):
            parser.add_argument(flag)
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--max-total-tokens", type=int)

    @classmethod
    def from_cli_args(cls, parsed):
        raise RuntimeError("this would look at the GPU")


def prepare_server_args(argv):
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(argv))
