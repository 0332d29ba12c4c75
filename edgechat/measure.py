"""How well a new bundle predicts a text, measured in a process of its own.

A large model may take more memory to run than to export: then that process is ended, and not
the export with all it has made.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgechat.bundle import Bundle, load_bundle
from edgechat.errors import EdgechatError
from edgechat.settings import Settings

Ids = NDArray[np.int64]
CONTEXT = multiprocessing.get_context(
    "spawn"
)  # a fork would inherit the threads of numpy and ONNX Runtime


def measure_apart(bundle: Bundle, ids: Ids, on_gpu: bool) -> float | None:
    """The perplexity of ``ids``, or None where the process was ended from outside.

    EdgechatError where the bundle does not run. ``on_gpu``: its graph is for a GPU, and is read
    by :class:`~edgechat.graph_runner.GraphRunner`.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    arguments = (sender, bundle.folder, ids, on_gpu)
    process = CONTEXT.Process(target=_send, args=arguments, daemon=True)
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        return None
    finally:
        process.join()
    if isinstance(result, Exception):
        raise result
    return float(result)


def _send(sender: Connection, folder: Path, ids: Ids, on_gpu: bool) -> None:
    try:
        sender.send(_measure(load_bundle(folder), ids, on_gpu))
    except (EdgechatError, OSError) as error:
        sender.send(error)


def _measure(bundle: Bundle, ids: Ids, on_gpu: bool) -> float:
    from edgechat.evaluate import Reader, evaluate
    from edgechat.graph_runner import GraphRunner
    from edgechat.runtime.cores import usable_cores

    if on_gpu:
        return GraphRunner(bundle, usable_cores()).perplexity(ids)
    return evaluate(Reader(bundle, Settings(policy="full"), len(ids)), ids).perplexity
