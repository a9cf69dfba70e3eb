"""What the workflows name is there: environments of tox, options, files, pinned actions."""

from __future__ import annotations

import configparser
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance import plugin_options
from conformance.cli import parser
from conformance.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    """A workflow. YAML 1.1 takes the key ``on`` for a boolean."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in load(path)["jobs"].items():
            yield f"{path.stem} {name}", job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs():
        for number, step in enumerate(job["steps"], 1):
            yield f"{name} step {number}", step


def environments() -> set[str]:
    """Names of tox's environments, generated ones included."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini", encoding="utf-8")
    found = set()
    for section in config.sections():
        if section.startswith("testenv:"):
            parts = re.split(r"\{([^}]*)\}", section.removeprefix("testenv:"))
            choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
            found |= {"".join(chosen) for chosen in itertools.product(*choices)}
    return found


def commands(job: dict[str, Any]) -> Iterator[list[str]]:
    """Words of the job's command lines, once for each environment of its matrix."""
    variants = job.get("strategy", {}).get("matrix", {}).get("environment", [""])
    for step in job["steps"]:
        text = step.get("run", "").replace("\\\n", " ")
        for line, variant in itertools.product(text.splitlines(), variants):
            yield shlex.split(line.replace("$ENVIRONMENT", variant), comments=True)


def tox_calls() -> Iterator[tuple[str, str, list[str]]]:
    """Job, environment and arguments of each call of tox."""
    for name, job in jobs():
        for words in commands(job):
            if any(Path(word).name == "tox" for word in words) and "run" in words:
                split = words.index("--") if "--" in words else len(words)
                yield name, words[words.index("-e") + 1], words[split + 1 :]


class Options:
    """Stands for pytest's parser: collects the names of the options that the plugin adds."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def getgroup(self, *_: str) -> Options:
        return self

    def addoption(self, *names: str, **_: Any) -> None:
        self.names.update(names)


def test_there_are_workflows():
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml"]
    assert len(list(tox_calls())) >= 10


def test_every_environment_of_tox_exists():
    for name, environment, _ in tox_calls():
        assert environment in environments(), f"{name}: {environment}"


def test_environments_are_read_as_tox_reads_them():
    config = pytest.importorskip("tox.run", reason="tox is not installed here")
    state = config.setup_state(["config", "-c", str(ROOT / "tox.ini")])
    assert environments() == {name for name in state.envs.iter(only_active=False) if name != ".pkg"}


def test_every_triton_that_tox_knows_is_in_the_matrix():
    (matrix,) = [job["strategy"]["matrix"]["environment"] for name, job in jobs() if name == "nightly cpu"]
    assert set(matrix) == {name for name in environments() if re.fullmatch(r"triton\d+-cpu", name)}


def test_options_of_the_suite_exist():
    ours = Options()
    plugin_options.pytest_addoption(ours)  # type: ignore[arg-type]
    for name, environment, arguments in tox_calls():
        if environment != "matrix":
            options = {word for word in arguments if word.startswith("-") and word != "-n"}
            assert options
            assert options <= ours.names, f"{name}: {options - ours.names}"


def test_the_page_is_asked_for_as_the_command_takes_it():
    (text,) = [step["run"] for _, step in steps() if "-e matrix" in step.get("run", "")]
    words = [word for given in re.findall(r"arguments\+?=\((.*?)\)", text) for word in shlex.split(given)]
    options = parser().parse_args(["matrix", *words])
    assert (options.results, options.out, options.before) == ([Path("now")], Path("site"), [Path("before")])


def test_profiles_that_can_be_chosen_exist():
    (nightly,) = [load(path) for path in WORKFLOWS if path.stem == "nightly"]
    assert set(nightly["on"]["workflow_dispatch"]["inputs"]["profile"]["options"]) == set(PROFILES)


def test_scripts_that_are_run_exist_and_can_be_executed():
    found = [words[0] for _, job in jobs() for words in commands(job) if words and words[0].startswith(".")]
    assert found == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_actions_are_pinned_by_commit_with_the_version_beside():
    for path in WORKFLOWS:
        used = re.findall(r"uses: *(.*)", path.read_text(encoding="utf-8"))
        assert used
        for text in used:
            assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", text), text


def test_one_version_of_an_action_is_used():
    found: dict[str, set[str]] = {}
    for _, step in steps():
        if "uses" in step:
            name, _, commit = step["uses"].partition("@")
            found.setdefault("/".join(name.split("/")[:2]), set()).add(commit)
    assert all(len(commits) == 1 for commits in found.values()), found


def test_jobs_may_read_the_code_and_nothing_else():
    for path in WORKFLOWS:
        assert load(path)["permissions"] == {}
    for name, job in jobs():
        assert job["permissions"] == {"contents": "read"}, name
        assert job["timeout-minutes"] <= 360, name
    for name, step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, name


def test_no_expression_is_pasted_into_a_command():
    """Values go through the environment: what an input or a branch is called cannot become a command."""
    for name, step in steps():
        assert "${{" not in step.get("run", ""), name


def test_own_runners_never_run_what_a_pull_request_brings():
    for path in WORKFLOWS:
        workflow = load(path)
        for name, job in workflow["jobs"].items():
            if "self-hosted" in job["runs-on"]:
                assert not {"pull_request", "pull_request_target", "push"} & set(workflow["on"]), name
                assert "vars.GPU_RUNNER == 'true'" in job["if"], name
                labels = yaml.safe_load((ROOT / ".github" / "actionlint.yaml").read_text(encoding="utf-8"))
                assert set(job["runs-on"]) - {"self-hosted"} == set(labels["self-hosted-runner"]["labels"])


def test_results_are_kept_after_failures():
    """Steps after the judging run although it fails, and the page is made although a job failed."""
    for name, job in jobs():
        if not name.startswith("nightly"):
            continue
        if "needs" in job:
            assert "!cancelled()" in job["if"], name
            continue
        judged = next(n for n, step in enumerate(job["steps"]) if step.get("name") == "Judge the kernels")
        assert job["steps"][judged]["timeout-minutes"] < job["timeout-minutes"]
        after = job["steps"][judged + 1 :]
        assert after
        assert all("!cancelled()" in step["if"] for step in after), name
