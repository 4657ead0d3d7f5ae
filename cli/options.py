"""Options that several commands have, with the same name and meaning in each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result to FILE, as JSON.", show_default=False)
]
JunitOption = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Write the result to FILE, as JUnit XML.", show_default=False),
]
ExecOption = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="CMD",
        help="Drive the manager for which this command speaks (docs/protocol.md), instead of a target.",
        show_default=False,
    ),
]
CallSecondsOption = Annotated[
    float | None,
    typer.Option(help="With --exec: seconds within which each call has to return; by default 10.", show_default=False),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace output files that kvspec did not make.")]
