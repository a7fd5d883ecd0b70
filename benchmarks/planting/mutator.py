"""Single faults in the source of a module, found in its syntax tree: what a tired programmer might have written.

A fault replaces one node of the tree and leaves all other text as it is. Never touched are docstrings, the texts of
errors and warnings, `__repr__` and its kin, annotations, imports, asserts, `raise NotImplementedError`, the arguments
of `dataclass`, and `strict=` of `zip`. An assignment is dropped only if the name has a value before it: a NameError
would be no test of the tests.
"""

import ast
import copy
import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

_BINARY: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
_PAIRS = (
    ("min", "max"),
    ("floor", "ceil"),
    ("any", "all"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
)
_OTHER_NAME = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
_OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp)
_SILENT = {"__repr__", "__str__", "extra_repr"}
_NOT_CODE = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass, ast.Assert)
# Without one of these a module does not work at all, or nothing but a type checker sees it.
_KEPT_DECORATORS = {
    "property", "staticmethod", "classmethod", "dataclass", "contextmanager", "overload", "override", "abstractmethod",
}  # fmt: skip
# The order of their arguments is of no consequence, or nobody gets it wrong.
_UNSWAPPED = {
    "min",
    "max",
    "minimum",
    "maximum",
    "isinstance",
    "issubclass",
    "getattr",
    "setattr",
    "hasattr",
    "super",
    "cast",
}
_Compound = ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match


@dataclass(frozen=True)
class Fault:
    """One fault in one file.

    Attributes:
        path: The file, relative to the repository.
        kind: operator, constant, bound, name, argument, dropped, return or decorator.
        line: Where it is.
        covering: First and last line of the places of which a test must run one to notice it, best first.
        source: The text of the module with the fault.
    """

    path: str
    kind: str
    line: int
    covering: tuple[tuple[int, float], ...]
    source: str

    def diff(self, original: str) -> str:
        """The change, as a diff without its head."""
        lines = difflib.unified_diff(original.splitlines(), self.source.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


def faults(path: str, source: str) -> list[Fault]:
    """Every single fault that can be planted in a module."""
    tree = ast.parse(source)
    content = source.encode()
    starts = [0, *itertools.accumulate(len(line) for line in content.splitlines(keepends=True))]
    found: dict[str, Fault] = {}
    for place, node, kind, replacement in _Finder().module(tree):
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        if isinstance(replacement, str):
            text = replacement
            if kind == "decorator":  # its line goes, from the @ on
                first = content.rindex(b"@", 0, first)
                last = content.index(b"\n", last)
        else:
            text = ast.unparse(ast.fix_missing_locations(replacement))
            enclosed = content[first - 1 : first] + content[last : last + 1] == b"()"
            if place.inner and not enclosed and isinstance(replacement, _OPERATIONS):
                text = f"({text})"
        if isinstance(replacement, str) or ast.dump(replacement) != ast.dump(node):
            changed = (content[:first] + text.encode() + content[last:]).decode()
            found.setdefault(changed, Fault(path, kind, node.lineno, place.covering, changed))
    return list(found.values())


@dataclass(frozen=True)
class _Place:
    """Where a node stands: in which statement, function and class, and whether in a larger expression."""

    covering: tuple[tuple[int, float], ...] = ((1, float("inf")),)
    inner: bool = False
    runs_at_import: bool = True


_Found = tuple[_Place, ast.AST, str, ast.AST | str]


class _Finder:
    """Walks through a module and finds places for faults."""

    def module(self, tree: ast.Module) -> Iterator[_Found]:
        yield from self._body(tree.body, _Place(), set())

    def _body(self, body: list[ast.stmt], outer: _Place, names: set[str]) -> Iterator[_Found]:
        for statement in body:
            yield from self._statement(statement, outer, names)
            names |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}

    def _statement(self, node: ast.stmt, outer: _Place, names: set[str]) -> Iterator[_Found]:
        if isinstance(node, _NOT_CODE) or _is_text(node) or _is_for_types(node) or _is_abstract(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._function(node, outer)
            return
        if isinstance(node, ast.ClassDef):
            # Its body runs once, in whichever test imports the module: any test of the module may notice.
            yield from self._body(node.body, _Place(outer.covering), {"__slots__"})
            return
        last = node.end_lineno or node.lineno
        if isinstance(node, _Compound):
            bodies = [getattr(node, name, []) for name in ("body", "orelse", "finalbody", "handlers", "cases")]
            last = max(node.lineno, min(part.lineno for body in bodies for part in body if hasattr(part, "lineno")) - 1)
        covering = outer.covering if outer.runs_at_import else ((node.lineno, last), *outer.covering)
        place = _Place(covering, False, outer.runs_at_import)
        if not outer.runs_at_import or isinstance(node, ast.AugAssign):
            yield from self._dropped(node, place, names)
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.AugAssign):
            for other in _BINARY.get(type(node.op), ()):
                yield place, node, "operator", _with(node, op=other())
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody"):
                yield from self._body(value, outer, names)
            elif name in ("handlers", "cases"):
                for part in value:
                    yield from self._body(part.body, outer, names)
                    if isinstance(part, ast.match_case) and part.guard:
                        yield from self._expression(part.guard, place)
            elif name not in ("annotation", "target", "targets", "decorator_list", "type_params"):
                yield from self._values(value, place)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, outer: _Place) -> Iterator[_Found]:
        if node.name in _SILENT:
            return
        inside = (node.body[0].lineno, node.end_lineno or node.lineno)
        place = _Place((inside, *outer.covering))
        for decorator in node.decorator_list:
            if _name(decorator) not in _KEPT_DECORATORS and not ast.unparse(decorator).endswith((".setter", ".getter")):
                yield place, decorator, "decorator", ""
        arguments = node.args
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if isinstance(default, ast.Constant) and default.value is None:
                yield place, default, "constant", ast.Constant(0)
            elif default is not None:
                yield from self._expression(default, place)
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        names = {argument.arg for argument in everything if argument}
        yield from self._body(node.body, _Place((inside, *outer.covering), False, False), names)

    def _dropped(self, node: ast.stmt, place: _Place, names: set[str]) -> Iterator[_Found]:
        match node:
            case ast.Return(value=ast.AST() as value) if ast.unparse(value) != "None":
                yield place, node, "return", "return None"
            case (
                ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue()
            ):
                yield place, node, "dropped", "pass"
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target, value=ast.AST()):
                stored = [n for n in ast.walk(target) if isinstance(getattr(n, "ctx", None), ast.Store)]
                if all(not isinstance(n, ast.Name) or n.id in names for n in stored):
                    yield place, node, "dropped", "pass"
            case _:
                return

    def _values(self, value: object, place: _Place) -> Iterator[_Found]:
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.expr):
                yield from self._expression(part, place)
            elif isinstance(part, ast.AST):
                for _, inner in ast.iter_fields(part):
                    yield from self._values(inner, place)

    def _expression(self, node: ast.expr, place: _Place) -> Iterator[_Found]:
        if isinstance(node, _NOT_CODE) or (isinstance(node, ast.Call) and _name(node.func) == "warn"):
            return
        for kind, replacement in _replacements(node):
            yield place, node, kind, replacement
        inner = _Place(place.covering, True, place.runs_at_import)
        match node:
            case ast.Call(func=func, args=args, keywords=keywords):
                yield from self._values(func, inner)
                checks_type = _name(func) in ("isinstance", "issubclass", "cast")
                yield from self._values(args[:1] if checks_type else args, inner)
                for keyword in keywords:
                    if keyword.arg not in ("strict", "stacklevel"):
                        yield from self._expression(keyword.value, inner)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                return  # -1 has its own replacements
            case ast.Lambda(body=body):
                yield from self._expression(body, inner)
            case _:
                for _, value in ast.iter_fields(node):
                    yield from self._values(value, inner)


def _replacements(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in place of an expression, each with the kind of its fault."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            if not any(isinstance(n, ast.JoinedStr) or _is_string(n) or _is_none(n) for n in (left, right)):
                for other in _BINARY.get(type(op), ()):
                    yield "operator", _with(node, op=other())
        case ast.Compare(ops=ops):
            for number, op in enumerate(ops):
                for other in _COMPARISONS[type(op)]:
                    yield "operator", _with(node, ops=[*ops[:number], other(), *ops[number + 1 :]])
        case ast.BoolOp(op=op):
            yield "operator", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield "operator", operand
        case ast.Constant(value=value):
            for other in _other_constants(value):
                yield "constant", ast.Constant(other)
        case ast.Call(func=func, args=args):
            if _name(func) in _OTHER_NAME:
                yield "name", _with(node, func=_renamed(func))
            if _name(func) == "range" and args:
                place = min(1, len(args) - 1)
                for op in (ast.Add(), ast.Sub()):
                    stop = ast.BinOp(args[place], op, ast.Constant(1))
                    yield "bound", _with(node, args=[*args[:place], stop, *args[place + 1 :]])
            if _name(func) not in _UNSWAPPED and not any(isinstance(a, ast.Starred) for a in args):
                for n in range(len(args) - 1):
                    yield "argument", _with(node, args=[*args[:n], args[n + 1], args[n], *args[n + 2 :]])
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper) as part):
            for name, bound, op in (("lower", lower, ast.Add()), ("upper", upper, ast.Sub())):
                if bound is not None:
                    moved = ast.BinOp(bound, op, ast.Constant(1))
                    yield "bound", _with(node, slice=_with(part, **{name: moved}))
        case _:
            return


def _other_constants(value: object) -> tuple[object, ...]:
    match value:
        case bool():
            return (not value,)
        case 1:
            return (0, 2) if isinstance(value, int) else (0.0, 2.0)
        case int():
            return (value + 1,)
        case float():
            return (2 * value,) if value else (1.0,)
        case _:
            return ()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _renamed(func: ast.expr) -> ast.AST:
    if isinstance(func, ast.Name):
        return _with(func, id=_OTHER_NAME[func.id])
    return _with(func, attr=_OTHER_NAME[_name(func)])


def _name(node: ast.expr) -> str:
    """The last part of a name, also of what is called."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=func):
            return _name(func)
        case _:
            return ""


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_string(node.value)


def _is_abstract(node: ast.stmt) -> bool:
    """The `raise NotImplementedError` of a method that every subclass has."""
    return isinstance(node, ast.Raise) and node.exc is not None and _name(node.exc) == "NotImplementedError"


def _is_for_types(node: ast.stmt) -> bool:
    """An `if TYPE_CHECKING`, or the alias of a type."""
    if isinstance(node, ast.If):
        return _name(node.test) == "TYPE_CHECKING"
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, ast.BitOr)
        and (
            isinstance(node.targets[0], ast.Name)
            and node.targets[0].id[:1].isupper()
            and not node.targets[0].id.isupper()
        )
    )
