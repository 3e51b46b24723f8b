"""What a function reads while it works as an agent is seen, kept with its samples, and compared before they are taken over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.evals import ran, suite, write

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.agents.native_code import reads_by_itself
from pytest_gittrix.evals.agents.reads import READ, Reads, differing, together, unsure
from pytest_gittrix.evals.agents.watching import loading, not_recording, reads_so_far, recording, runs_program
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.runs.run import Summary

WORKS = "toolbox.write('app.py', 'VERSION = 2\\n')"


def read_by(root: Path, act: Callable[[], object]) -> Reads:
    """What is seen of something that an agent does; the agent has a name that no other test gives."""
    with recording(str(root)):
        act()
    return reads_so_far(str(root), str(root))


def agent(root: Path, body: str, top: str = "") -> str:
    """The spec of a function with this body, below some lines that run when it is loaded."""
    file = root / f"agent_of_{abs(hash((str(root), body, top)))}.py"
    begin = f"import os\nfrom pathlib import Path\nHERE = Path(__file__).parent\n{top}\n"
    file.write_text(f"{begin}def work(toolbox):\n    {body}\n    {WORKS}\n")
    return f"python:{file}:work"


def again(root: Path, spec: str) -> Summary:
    """A second run, which takes over what it can from the first."""
    return ran(root / "suite", root, spec, out=root / "again", reuse=root / "run")


# What is seen ----------------------------------------------------------------------------------------------------------------------


def test_files_directories_variables_and_questions_are_seen_with_their_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"prompts/a.md": "be kind", "rules.txt": "1"})
    monkeypatch.setenv("GX_MODEL", "small")

    def act() -> None:
        [file.read_text() for file in (tmp_path / "prompts").glob("*.md")]
        with pytest.raises(FileNotFoundError):
            (tmp_path / "more.md").open()
        assert not (tmp_path / "flag").exists()
        assert os.path.isfile(tmp_path / "rules.txt")
        os.environ.get("GX_MODEL")
        os.getenv("GX_OTHER")

    seen = read_by(tmp_path, act).seen

    assert {key for key, state in seen.items() if state is not None} == {
        "exists rules.txt",
        "file prompts/a.md",
        "listing prompts",
        "variable GX_MODEL",
    }
    assert {key for key, state in seen.items() if state is None} == {"exists flag", "file more.md", "variable GX_OTHER"}
    assert "small" not in str(seen)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "prompts" / "a.md").write_text("be rude"),
        lambda root: (root / "prompts" / "b.md").write_text("be brief"),
        lambda root: (root / "flag").touch(),
        lambda root: os.environ.__setitem__("GX_MODEL", "large"),
        lambda root: os.environ.__delitem__("GX_MODEL"),
    ],
)
def test_whatever_of_it_changes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]) -> None:
    write(tmp_path, {"prompts/a.md": "be kind"})
    monkeypatch.setenv("GX_MODEL", "small")

    def act() -> None:
        os.listdir(tmp_path / "prompts")
        (tmp_path / "prompts/a.md").read_text()
        (tmp_path / "flag").exists()
        os.environ.get("GX_MODEL")

    read = read_by(tmp_path, act)

    assert read.changed(str(tmp_path)) == []
    change(tmp_path)
    assert len(read.changed(str(tmp_path))) == 1
    assert "changed since" in read.why_not(str(tmp_path), trust=True)


def test_what_an_agent_made_itself_and_what_the_run_does_for_it_is_no_input(tmp_path: Path) -> None:
    write(tmp_path, {"engine.txt": "1"})

    def act() -> None:
        (tmp_path / "log").write_text("begun")
        (tmp_path / "log").read_text()
        (tmp_path / "own").mkdir()
        os.listdir(tmp_path / "own")
        os.environ["GX_OWN"] = "1"
        assert os.environ.pop("GX_OWN") == "1"
        os.environ.get("PYTEST_CURRENT_TEST")
        with not_recording():
            (tmp_path / "engine.txt").read_text()

    assert read_by(tmp_path, act).seen == {}


def test_what_was_there_before_an_agent_changed_it_is_an_input(tmp_path: Path) -> None:
    write(tmp_path, {"memory.txt": "1"})

    def act() -> None:
        os.environ.setdefault("GX_ONCE", "1")
        os.environ.pop("GX_ONCE")
        (tmp_path / "memory.txt").read_text()
        (tmp_path / "memory.txt").write_text("2")
        (tmp_path / "memory.txt").read_text()

    read = read_by(tmp_path, act)

    assert read.seen["variable GX_ONCE"] is None
    assert read.changed(str(tmp_path)) == ["file memory.txt"]


def test_nothing_is_seen_outside_and_python_is_as_it_was(tmp_path: Path) -> None:
    asked, environment, imports = os.stat, type(os.environ), __builtins__["__import__"]  # type: ignore[index]
    read_by(tmp_path, lambda: None)
    os.environ.get("GX_MODEL")
    (tmp_path / "later").exists()

    assert (os.stat, type(os.environ), __builtins__["__import__"]) == (asked, environment, imports)  # type: ignore[index]
    assert reads_so_far(str(tmp_path), str(tmp_path)).seen == {}


def test_threads_of_an_agent_are_seen_too(tmp_path: Path) -> None:
    import threading

    write(tmp_path, {"a.txt": "1"})

    def act() -> None:
        thread = threading.Thread(target=lambda: (tmp_path / "a.txt").read_text())
        thread.start()
        thread.join()

    assert "file a.txt" in read_by(tmp_path, act).seen


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("subprocess.run(['true'])", "It starts programs by itself"),
        ("os.system('true')", "It starts programs by itself"),
        ("__import__('multiprocessing').get_context('spawn').Process(target=print).start()", "It starts programs by itself"),
        ("__import__('ctypes').CDLL(None).getenv", "It calls C code by ctypes"),
        ("__import__('ctypes').CDLL('libz.so.1')", "It calls C code by ctypes"),
    ],
)
def test_what_cannot_be_seen_is_said(tmp_path: Path, code: str, sentence: str) -> None:
    read = read_by(tmp_path, lambda: eval(code, {"subprocess": subprocess, "os": os}))

    assert any(sentence in one for one in read.unknown)
    assert "cannot be known" in read.why_not(str(tmp_path), trust=False)
    assert read.why_not(str(tmp_path), trust=True) == ""


@pytest.mark.parametrize(
    "code",
    [
        "__import__('ctypes').CDLL(None).pthread_self",
        "__import__('ctypes').pythonapi.Py_IncRef",
        "__import__('ctypes.util').util.find_library('pthread')",
    ],
)
def test_c_functions_that_read_nothing_and_the_search_for_a_library_leave_nothing_unknown(tmp_path: Path, code: str) -> None:
    assert read_by(tmp_path, lambda: eval(code)).unknown == ()


@pytest.mark.parametrize("name", ["httpx", "trio", "yaml"])
def test_what_agents_usually_import_leaves_nothing_unknown(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    code = f"from pytest_gittrix.evals.agents.watching import reads_so_far, recording\nwith recording('a'):\n    import {name}\n"
    code += (
        f"read = reads_so_far('a', '/nowhere')\nprint([*read.unknown], 'distribution {name}' in str(read.seen).replace('pyyaml', 'yaml'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[] True\n", "")


def test_a_c_extension_is_unknown_only_if_it_may_read_by_itself(tmp_path: Path) -> None:
    import _cffi_backend
    import markupsafe._speedups
    import pygit2._pygit2

    (tmp_path / "text.so").write_text("no shared code")
    (tmp_path / "cut.so").write_bytes(Path(markupsafe._speedups.__file__).read_bytes()[:200])

    assert not reads_by_itself(markupsafe._speedups.__file__)
    assert reads_by_itself(_cffi_backend.__file__)  # it calls dlopen, getenv and open
    assert reads_by_itself(pygit2._pygit2.__file__)  # it needs libgit2
    assert all(reads_by_itself(str(tmp_path / name)) for name in ("text.so", "cut.so", "none.so"))


def test_a_module_counts_with_what_it_read_when_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"gx_loaded.py": "from pathlib import Path\nTEXT = Path(__file__).with_name('t.txt').read_text()\n", "t.txt": "1"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with recording("somebody else"), loading(list):
        import gx_loaded  # type: ignore[import-not-found]  # noqa: F401

    read = read_by(tmp_path, lambda: __import__("gx_loaded"))

    assert {"file gx_loaded.py", "file t.txt", "import gx_loaded"} <= {*read.seen}
    assert read.unknown == ()


def test_of_a_module_that_was_loaded_unwatched_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"gx_unwatched.py": "X = 1\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("gx_unwatched")

    read = read_by(tmp_path, lambda: __import__("gx_unwatched"))

    assert "file gx_unwatched.py" in read.seen
    assert read.unknown == ("gx_unwatched was imported before the agent, and what it read then was not seen.",)


def test_a_module_that_is_not_there_is_missed_when_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))

    def act() -> None:
        with pytest.raises(ImportError):
            __import__("gx_local_settings")

    read = read_by(tmp_path, act)
    write(tmp_path, {"gx_local_settings.py": ""})

    assert "import gx_local_settings" in read.changed(str(tmp_path))


def test_a_distribution_counts_by_its_version_and_python_does_not(tmp_path: Path) -> None:
    import json

    import pluggy

    seen = read_by(tmp_path, lambda: (Path(pluggy.__file__).read_text(), Path(json.__file__).read_text())).seen

    assert seen == {"distribution pluggy": pluggy.__version__}


def test_programs_that_it_runs_import_what_is_installed(tmp_path: Path) -> None:
    confined = read_by(tmp_path / "a", lambda: runs_program(confined=True))
    free = read_by(tmp_path / "b", lambda: runs_program(confined=False))

    assert [*confined.seen] == [*free.seen] == ["installed "]
    assert (confined.unknown, len(free.unknown)) == ((), 1)


def test_two_runs_are_the_same_only_as_far_as_both_have_read_the_same() -> None:
    one, other = Reads({"file a": "1", "file b": "1"}), Reads({"file a": "2", "file c": "1"})

    assert differing(one, other) == ["file a"]
    assert unsure(one, other) == ["Only one of them has read file b, file c."]
    assert unsure(one, one) == []
    assert unsure(Reads(network=True), Reads()) == ["What the network answered is not compared."]
    assert together([one, None, Reads({"file a": "3"})]).seen["file a"] == "changed meanwhile"
    assert Reads.among([{"phase": "x"}, one.to_json()]) == one
    assert READ in one.to_json()


# What is made of it ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", ["", "MODEL = os.environ['GX_MODEL']"])
def test_an_agent_that_reads_a_variable_is_another_with_another_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: str) -> None:
    spec = agent(tmp_path, "pass" if top else "os.environ['GX_MODEL']", top)
    suite(tmp_path)
    monkeypatch.setenv("GX_MODEL", "small")
    first = ran(tmp_path / "suite", tmp_path, spec)
    same = again(tmp_path, spec)
    monkeypatch.setenv("GX_MODEL", "large")
    other = ran(tmp_path / "suite", tmp_path, spec, out=tmp_path / "other", reuse=tmp_path / "run")

    assert (same.taken_over, other.taken_over) == (1, 0)
    assert other.reused["one", 0].why == "the agent read variable GX_MODEL, changed since"
    with pytest.raises(InvalidInput, match="the agent read variable GX_MODEL, changed since"):
        ran(tmp_path / "suite", tmp_path, spec, resume=True)
    if not top:  # a variable that is read when the module is loaded is not read again in this process
        assert compare(first.store, other.store).inputs == ("read.variable GX_MODEL",)
    assert (compare(first.store, same.store).inputs, compare(first.store, same.store).unsure) == ((), ())


def test_an_agent_that_starts_programs_is_unknown_in_the_manifest_and_taken_over_only_on_trust(tmp_path: Path) -> None:
    spec = agent(tmp_path, "import subprocess; subprocess.run(['true'])")
    suite(tmp_path)
    first = ran(tmp_path / "suite", tmp_path, spec)
    second = again(tmp_path, spec)
    trusted = ran(tmp_path / "suite", tmp_path, spec, out=tmp_path / "trusted", reuse=tmp_path / "run", trust_agent=True)

    assert first.store.manifest().host["unknown"][0].startswith("It starts programs by itself")
    assert (second.taken_over, trusted.taken_over) == (0, 1)
    assert "it cannot be known whether its inputs are the same: It starts programs" in second.reused["one", 0].why
    assert compare(first.store, second.store).unsure[0].startswith("It starts programs by itself")
    with pytest.raises(InvalidInput, match="--trust-agent keeps what cannot be known"):
        ran(tmp_path / "suite", tmp_path, spec, resume=True)


def test_a_run_whose_agent_reads_what_it_changes_is_of_no_agent(tmp_path: Path) -> None:
    write(tmp_path, {"memory.txt": "1"})
    spec = agent(tmp_path, "f = HERE / 'memory.txt'; f.write_text(f.read_text() + '1')")

    assert ran(suite(tmp_path), tmp_path, spec).store.is_mixed


def test_an_agent_that_was_moved_with_its_files_is_the_same(tmp_path: Path) -> None:
    write(tmp_path / "here", {"prompt.md": "be kind"})
    write(tmp_path / "there", {"prompt.md": "be kind"})
    body = f"def work(toolbox):\n    from pathlib import Path\n    Path(__file__).with_name('prompt.md').read_text()\n    {WORKS}\n"
    for place in ("here", "there"):
        (tmp_path / place / "gx_moved.py").write_text(body)
    suite(tmp_path)
    ran(tmp_path / "suite", tmp_path, f"python:{tmp_path / 'here' / 'gx_moved.py'}:work")

    assert again(tmp_path, f"python:{tmp_path / 'there' / 'gx_moved.py'}:work").taken_over == 1


def test_a_new_process_sees_the_same_as_the_first(tmp_path: Path) -> None:
    write(tmp_path, {"gx_words.py": "from gx_more import WORD\n", "gx_more.py": "WORD = 1\n"})
    spec = agent(tmp_path, "pass", "import gx_words")
    place = suite(tmp_path)
    run = [sys.executable, "-m", "pytest_gittrix.cli", "eval", "run", str(place), "--agent", spec, "--confine", "off", "--no-report"]
    for out in (["--out", "a", "-n", "2"], ["--out", "b", "--from", "a", "--json"]):
        done = subprocess.run([*run, *out], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    write(tmp_path, {"gx_more.py": "WORD = 2\n"})
    changed = subprocess.run([*run, "--out", "c", "--from", "a"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert '"reused": 1' in done.stdout
    assert "run again, the agent read file gx_more.py, changed since" in changed.stdout
