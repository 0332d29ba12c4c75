"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

AllowFallback = Annotated[
    bool,
    typer.Option(
        "--allow-fallback",
        help="Run a bundle for CUDA on the CPU, slowly, where CUDA is missing.",
    ),
]
