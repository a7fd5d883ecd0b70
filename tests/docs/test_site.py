"""The site has every page and every public name. It is checked without the packages that build it (`make docs`)."""

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", DOCS / "mkdocs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_every_page_once(hooks: ModuleType) -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    _, _, nav = config.partition("\nnav:\n")
    listed = re.findall(r"^ +- .*: (\S+\.md)$", nav.partition("\n\n")[0], flags=re.MULTILINE)
    outside = {hooks.place(path) for path in hooks.brought_in() if path.endswith(".md")}
    own = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert own <= set(listed) <= own | outside


def test_every_page_can_be_reached_from_the_index(hooks: ModuleType) -> None:
    reached, new = set[str](), {"docs/index.md"}
    while new:
        reached |= new
        new = {path for page in new if page.endswith(".md") for path in hooks.linked(page)} - reached
    assert {page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")} - reached == set()
    assert {path for path in reached if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("package", ["bsnn", "bsnn.data", "bsnn.models", "bsnn.optim", "bsnn.paper", "bsnn.train"])
def test_the_names_that_python_sees_are_those_of_the_reference(hooks: ModuleType, package: str) -> None:
    public = {f"{package}.{name}" for name in importlib.import_module(package).__all__}
    assert {name for name in public if not _is_package(name)} == {
        name for name in hooks.public_names() if name.rpartition(".")[0] == package
    }


def _is_package(name: str) -> bool:
    return (ROOT / "src" / name.replace(".", "/") / "__init__.py").exists()


def test_the_reference_has_every_public_name(hooks: ModuleType) -> None:
    missing = hooks.documented()[""]
    assert missing == [], "add a line such as '::: bsnn.nn.neuron', their module, to a page in docs/reference/"


def test_the_reference_repeats_no_module(hooks: ModuleType) -> None:
    directives = [d for page in DOCS.rglob("*.md") for d in hooks.DIRECTIVE.findall(page.read_text())]
    assert len(directives) == len(set(directives))


def test_links_from_a_page_outside_docs_lead_to_the_same_file_in_the_site(hooks: ModuleType) -> None:
    assert hooks.place("docs/design.md") == "design.md"
    assert hooks.place("README.md") == "readme.md"
    assert hooks.place("examples/digits.py") == "examples/digits.py.md"
    placed = [hooks.place(path) for path in hooks.brought_in()]
    assert len(placed) == len(set(placed))
    assert not set(placed) & {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*")}
