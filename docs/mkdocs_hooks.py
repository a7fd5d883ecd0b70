"""What the site has beyond the pages in this folder: files of the repository that pages link to, and the public names.

A link that leaves docs/ works on GitHub and in the site, because the file that it leads to becomes part of the site. In
reference/, the line `::: bsnn.nn.neuron` stands for every public name whose home is that module or a module below it; a
line that covers no public name, such as `::: bsnn.online.update.Outcome`, stands for that object alone.
"""

from __future__ import annotations

import ast
import logging
import os.path
import re
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
ALWAYS = {"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "examples/README.md"}
LINK = re.compile(r'(?<=\]\()(?!\w+:|#)[^)#\s]+|(?<=<img src=")(?!\w+:)[^"]+')
DIRECTIVE = re.compile(r"^::: (\S+)$", flags=re.MULTILINE)
LOADED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')


def linked(path: str) -> set[str]:
    """The files that a page links to, none if there is no such page. Paths are relative to the repository."""
    if not (ROOT / path).is_file():
        return set()
    return {os.path.normpath(PurePosixPath(path).parent / link) for link in LINK.findall((ROOT / path).read_text())}


def brought_in() -> set[str]:
    """The files outside of docs/ that become part of the site: those that its pages link to, and what they link to."""
    known: set[str] = set()
    new = ALWAYS | {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    while new:
        known |= new
        new = {file for page in new if page.endswith(".md") for file in linked(page)} - known
    return {file for file in known if not file.startswith("docs/") and (ROOT / file).is_file()}


def place(path: str) -> str:
    """Where a file of the repository is in the site. A program becomes a page; the index is that of docs/."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "readme.md"
    return f"{path}.md" if path.endswith(".py") else path


def public_names() -> dict[str, str]:
    """Every public name, such as `bsnn.LIF`, with its home, such as `bsnn.nn.neuron`.

    A public package lists them in its `__init__.pyi`, or in its `__init__.py` if it loads them at once. A module that
    is not a package, such as `bsnn.surrogate`, is one name.
    """
    names: dict[str, str] = {}
    lists = {file.parent: file for file in sorted(SOURCE.rglob("__init__.pyi"))}
    for folder in list(lists):
        for home, name in _imports(lists[folder]):
            package = SOURCE.joinpath(*home.split("."), name)
            if (package / "__init__.py").exists():
                lists.setdefault(package, package / "__init__.py")
    for folder, file in lists.items():
        for home, name in _imports(file):
            path = SOURCE.joinpath(*home.split("."), name)
            if path not in lists:
                is_module = path.parent.is_dir() and path.with_suffix(".py").exists()
                names[f"{_dotted(folder)}.{name}"] = f"{home}.{name}" if is_module else home
    return names


def _imports(file: Path) -> list[tuple[str, str]]:
    """The names that a file imports, each behind its module."""
    nodes = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom))
    return [(node.module, alias.name) for node in nodes if node.module for alias in node.names]


def _dotted(folder: Path) -> str:
    return ".".join(folder.relative_to(SOURCE).parts)


def directive(name: str) -> str:
    """What shows a public name. If a module has the same name, the object is asked for at its home."""
    if SOURCE.joinpath(*name.split(".")).with_suffix(".py").exists():
        home = public_names()[name]
        return f"::: {home}.{name.rpartition('.')[2]}\n    options: {{ heading: {name}, toc_label: {name} }}"
    return f"::: {name}"


def documented() -> dict[str, list[str]]:
    """The names under each directive of the reference. A name belongs to the directive that is closest to its home.

    An object with two public names stands under the shorter one. Names that no directive covers are under "".
    """
    texts = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    directives = {found for text in texts for found in DIRECTIVE.findall(text)} | {""}
    under = defaultdict[str, list[str]](list)
    objects: set[tuple[str, str]] = set()
    for name, home in sorted(public_names().items(), key=lambda item: item[0].count(".")):
        if (found := (home, name.rpartition(".")[2])) not in objects:
            objects.add(found)
            under[max((d for d in directives if not d or f"{home}.".startswith(f"{d}.")), key=len)].append(name)
    return under


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files from outside of docs/."""
    from mkdocs.structure.files import File

    for path in sorted(brought_in()):
        if path.endswith(".py"):
            page = f"# {path}\n\n```python\n{(ROOT / path).read_text()}```\n"
            files.append(File.generated(config, place(path), content=page))
        else:
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets links lead to where files are in the site, and replaces directives by names."""
    where = page.file.src_uri
    sources = {place(path): path for path in brought_in()}
    source = PurePosixPath(sources.get(where, f"docs/{where}"))

    def moved(link: re.Match[str]) -> str:
        target = os.path.normpath(source.parent / link[0])
        return os.path.relpath(place(target), PurePosixPath(where).parent)

    names = documented()
    text = LINK.sub(moved, markdown) if source.suffix == ".md" else markdown
    return DIRECTIVE.sub(lambda found: "\n\n".join(map(directive, names[found[1]] or [found[1]])), text)


def on_post_build(config: MkDocsConfig) -> None:
    """Warns, which fails the build, if a page would load something from another host."""
    for file in Path(config.site_dir).rglob("*.html"):
        for loaded in LOADED.findall(file.read_text()):
            logging.getLogger("mkdocs.plugins.bsnn").warning("%s loads from another host: %s", file.name, loaded)
