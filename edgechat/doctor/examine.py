"""Puts the probes together and judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgechat.bundle import load_bundle
from edgechat.doctor.ask import Answer, ask, run_program
from edgechat.doctor.findings import (
    Finding,
    machine_findings,
    needs_findings,
    software_findings,
    target_findings,
)
from edgechat.doctor.gap import gap_of
from edgechat.doctor.libraries import Libraries, look_at_libraries
from edgechat.doctor.machine import Machine, free_space, is_writable, look_at_machine
from edgechat.doctor.needs import TARGETS, Needs, bundle_needs, dialect_needs
from edgechat.doctor.verdict import Engine, Verdict, Ways, judge
from edgechat.errors import BundleError
from edgechat.memory_plan import remedies
from edgechat.settings import Settings


@dataclass(frozen=True)
class Report:
    """``verdict`` and ``needs`` are the bundle's; without one, ``targets`` has the verdict on each
    kind of bundle, by the ``--target`` of ``edgechat export``. ``ok``: what was asked can run, or
    anything at all. ``findings``: the rows people read, by section."""

    ok: bool
    machine: Machine
    libraries: Libraries
    needs: Needs | None = None
    verdict: Verdict | None = None
    targets: dict[str, Verdict] = field(default_factory=dict)
    findings: dict[str, list[Finding]] = field(default_factory=dict)


def examine(
    bundle: Path | None,
    settings: Settings,
    root: Path = Path("/"),
    run: Callable[[Sequence[str]], Answer] = run_program,
    ask: Callable[..., dict[str, Any]] = ask,
) -> Report:
    """Look at the machine (files under ``root``) and its libraries, and judge ``bundle`` by it."""
    machine, libraries = look_at_machine(root, run), look_at_libraries(ask)
    findings = {
        "Machine": machine_findings(machine),
        "Software": software_findings(machine, libraries),
    }
    if bundle is None:
        targets = {
            target: judge(dialect_needs(dialect), machine, libraries)
            for dialect, target in TARGETS.items()
        }
        ok = any(verdict.outcome != "cannot" for verdict in targets.values())
        findings["Bundles"] = target_findings(targets, machine, libraries)
        return Report(ok, machine, libraries, targets=targets, findings=findings)
    needs = engine = None
    try:
        loaded = load_bundle(bundle)
    except BundleError as error:
        verdict = Verdict("cannot", (gap_of(str(error)),))
    else:
        needs, ways = bundle_needs(loaded, settings), partial(remedies, loaded.manifest, settings)
        verdict = judge(needs, machine, libraries, ways=ways)
        if needs.tensorrt is not None and verdict.outcome == "run":
            engine, verdict = _judge_engine(bundle, needs, machine, libraries, ways, ask)
    findings["Bundle"] = needs_findings(bundle, needs, verdict, engine, machine, libraries)
    ok = verdict.outcome != "cannot"
    return Report(ok, machine, libraries, needs, verdict, findings=findings)


def _judge_engine(
    bundle: Path,
    needs: Needs,
    machine: Machine,
    libraries: Libraries,
    ways: Ways,
    ask: Callable[..., dict[str, Any]],
) -> tuple[Engine, Verdict]:
    facts = ask("engine", str(bundle.absolute()))
    engine = Engine(facts.get("why_build"), free_space(bundle), is_writable(bundle))
    if "error" in facts:
        return engine, Verdict("cannot", (gap_of(facts["error"]),))
    return engine, judge(needs, machine, libraries, engine, ways)
