"""What a server's log must not contain: lines that were seen when an engine is broken, whatever its health says.

Regular expressions that Python 3.8 knows too, for they also run on the host; messages as in SGLang 0.5.11. Not here,
because harmless starts show them: "Ignore import error when loading ...", "Using fallback token IDs", "Tokenizer loaded
as generic ...", and "Health check failed" (once in about 40 healthy runs).
"""

from __future__ import annotations

FATAL: tuple[str, ...] = (
    r"Traceback \(most recent call last\)",
    r"hit an exception:",  # scheduler, detokenizer, tokenizer manager, router of tokenizers
    r"Received sigquit from a child process",  # srt/entrypoints/engine.py: a child died
    r"scheduler died during initialization",
    r"watchdog timeout",  # srt/utils/watchdog.py, and NCCL's own
    r"memory leak detected!",  # srt/managers/scheduler_runtime_checker_mixin.py
    r"NaN in the logits",  # srt/layers/sampler.py; only with --enable-nan-detection
    r"(?:Prefill|Decode) out of memory",
    r"OutOfMemoryError|CUDA out of memory",
    r"CUDA error:|CUDA driver error|cudaError[A-Z]",
    r"device-side assert|Assertion .{1,200} failed",
    r"NCCL (?:error|timeout)|ncclUnhandled|ncclSystemError|ncclInternalError",
    r"Fatal Python error|Segmentation fault|Aborted \(core dumped\)",
    r"terminate called after throwing",
    r"DFLASH .{0,200}[Ff]alling back",  # srt/speculative/dflash_worker.py: not what was declared
)
