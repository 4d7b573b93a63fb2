"""The project as it is handed over: the wheel, the README, the reference page, the examples."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent

# Raises in every Python process that opens a connection or asks a name server.
NO_NETWORK = """
import sys

def refuse(event, args):
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        raise RuntimeError("network use: " + event)
    if event == "socket.connect" and isinstance(args[1], tuple):
        raise RuntimeError("network use: " + event)

sys.addaudithook(refuse)
"""


def run(*args: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=600, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The bin folder of a new virtual environment with this project's wheel and what it needs."""
    work = tmp_path_factory.mktemp("package")
    skip = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", "node_modules")
    tree = shutil.copytree(REPO, work / "tree", ignore=skip)
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", work, tree)
    assert built.returncode == 0, built.stderr
    (wheel,) = work.glob("*.whl")
    venv.create(work / "env", with_pip=True)
    put = run(work / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    assert put.returncode == 0, put.stderr
    shutil.rmtree(tree)
    return work / "env" / "bin"


def clean_environment(tmp_path: Path) -> dict[str, str]:
    """No setting that points to the checkout, an empty home, and no network for Python."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    dropped = ("PYTHON", "MONKEYLLM_", "TIKTOKEN_", "DATA_GYM_", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return env | {"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}


def test_the_network_guard_of_these_tests_works(installed, tmp_path):
    program = "import socket; socket.create_connection(('127.0.0.1', 9))"
    done = run(installed / "python", "-c", program, env=clean_environment(tmp_path))
    assert "network use" in done.stderr


def test_demo_runs_from_the_wheel_without_network(installed, tmp_path):
    env = clean_environment(tmp_path)
    done = run(installed / "vine", "demo", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "A single item over 25 EUR needs a receipt" in done.stdout
    line = re.search(r"claude mcp add monkeyllm -- (\S+) serve --forest (\S+)", done.stdout)
    assert line[1] == str(installed / "vine")
    checked = run(installed / "vine", "validate", "--strict", "--forest", line[2], cwd=tmp_path, env=env)
    assert checked.returncode == 0, checked.stdout
    assert str(REPO) not in done.stdout


def test_the_station_command_says_that_it_is_not_there_yet(installed, tmp_path):
    done = run(installed / "station", "serve", "--root", tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert "not part of this version" in done.stderr and "Traceback" not in done.stderr


def test_every_module_is_packaged():
    listed = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]["py-modules"]
    assert sorted(listed) == sorted(path.stem for path in REPO.glob("*.py"))


def test_every_third_party_import_is_a_declared_dependency():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", need)[0].lower() for need in project["dependencies"]}
    own = {path.stem for path in REPO.glob("*.py")} | {"vine_data"}
    distribution = {"yaml": "pyyaml", "argon2": "argon2-cffi", "Stemmer": "pystemmer"}
    # These come with the MCP library and are part of its interface.
    with_mcp = {"mcp_types", "pydantic", "starlette", "uvicorn"}
    for path in REPO.glob("*.py"):
        found = re.findall(r"^\s*(?:import|from) ([a-zA-Z_]\w*)", path.read_text(), re.M)
        foreign = set(found) - own - set(sys.stdlib_module_names)
        missing = {distribution.get(name, name) for name in foreign} - names - with_mcp
        assert not missing, f"{path.name} imports {missing}"


def test_the_reference_page_is_what_the_verb_table_says():
    printed = run(sys.executable, REPO / "docs" / "reference.py")
    assert printed.returncode == 0, printed.stderr
    assert (REPO / "docs" / "verbs.md").read_text("utf-8") == printed.stdout, (
        "python docs/reference.py > docs/verbs.md"
    )


@pytest.mark.parametrize("page", ["README.md", "docs/forest.md", "docs/design.md", "docs/verbs.md"])
def test_links_of_the_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (REPO / page).read_text("utf-8")):
        assert (REPO / page).parent.joinpath(target).exists(), target


def test_readme_names_only_commands_that_exist():
    help_text = run(sys.executable, REPO / "cli.py", "--help").stdout
    commands = set(re.findall(r"^    (\w+) ", help_text, re.M))
    text = (REPO / "README.md").read_text("utf-8")
    named = set(re.findall(r"(?:`|^|/)vine (?:--forest \S+ )?([a-z]+)", text, re.M))
    assert {"demo", "init", "adopt", "sync", "harvest", "connect", "validate"} <= named
    assert named <= commands


@pytest.mark.parametrize("example", ["handbook", "garden"])
def test_links_inside_an_example_lead_to_its_notes(example):
    root = REPO / "forests" / "examples" / example
    notes = {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.md")}
    assert len(notes) >= 15
    for path in root.rglob("*.md"):
        for target in re.findall(r"\[\[([^]|#]+)", path.read_text("utf-8")):
            assert target in notes, f"{path.name} links to {target}"
