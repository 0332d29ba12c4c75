"""What is there is kept, and an export that does not end leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.errors import BundleError
from edgechat.export import export_model, open_source


def test_an_existing_folder_is_kept(tiny_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "b"
    source = open_source(str(tiny_folder), print)
    export_model(source, target, "fp32")
    before = (target / "edgechat.json").read_bytes()
    with pytest.raises(BundleError, match="--overwrite"):
        export_model(source, target, "int8")
    assert (target / "edgechat.json").read_bytes() == before
    export_model(source, target, "int8", overwrite=True)
    assert (target / "edgechat.json").read_bytes() != before
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_overwrite_never_replaces_what_is_no_bundle(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "photo").write_text("x")
    with pytest.raises(BundleError, match="no bundle"):
        export_model(
            open_source(str(tiny_folder), print), tmp_path / "precious", "fp32", overwrite=True
        )
    assert (tmp_path / "precious" / "photo").read_text() == "x"


def test_a_disk_that_fills_up_leaves_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    """A file size limit makes writes fail in the middle, as a full disk does."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)\n"
        "from edgechat.cli import main\n"
        f"sys.argv = ['edgechat', 'export', {str(tiny_folder)!r}, '-o', 'out/b', '-p', 'fp32']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_sigterm_in_the_middle_leaves_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "import edgechat.export.export as e\n"
        "from edgechat.cli import main\n"
        "e.write_manifest = lambda *a: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.argv = ['edgechat', 'export', {str(tiny_folder)!r}, '-o', 'b', '-p', 'fp32']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_kill_in_the_middle_leaves_no_bundle_and_the_next_export_tidies_up(
    tiny_folder: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys\n"
        "import edgechat.export.export as e\n"
        "from edgechat.export import export_model, open_source\n"
        "from pathlib import Path\n"
        "e.write_manifest = lambda *a: os.kill(os.getpid(), 9)\n"
        f"export_model(open_source({str(tiny_folder)!r}, print), Path('b'), 'fp32')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert not (tmp_path / "b").exists()
    assert len(list(tmp_path.iterdir())) == 1
    export_model(open_source(str(tiny_folder), print), tmp_path / "b", "fp32")
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
