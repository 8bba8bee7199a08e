"""Which initializers are parameters, and which of them train. This docstring is the rule, `classify` implements it.

Only f32 initializers of the original model can be parameters; values that the importer computed (Constant nodes, folded
subgraphs) never are. What an initializer *is* follows from what it is *for*, never from its values:

1. From each initializer we follow its value through operators that see nothing but constants (views and copies, and,
   for more than one element, arithmetic such as a weight norm) to where it meets an activation.
2. It is a **statistic** where it is a running mean or variance of BatchNormalization.
3. It is a **parameter** where it is
   a. an operand its operator declares as one (`Operator.parameter_inputs`: weights and biases of Gemm, MatMul and
      convolutions, embedding tables, PRelu slopes, scale and bias of normalisations), even if the layer's data is a
      constant table (the network behind a relative position bias);
   b. a bias: added to a product with a weight, one element per output channel, even if that is a single element;
   c. of more than one element and added to or multiplied with an activation (positional embedding, LayerScale), or
      put beside one (Concat: a class token), or in its place (Where: a mask token);
   d. of more than one element and subtracted from an activation, divided by, or an exponent: centres of radial basis
      functions, temperatures, the exponent of a generalised mean;
   e. in a file that PyTorch wrote, one element under a name of its own in arithmetic or as an exponent (a learned
      temperature): numbers in Python code reach such a file without a name.
4. Everything else is a **constant**, in particular
   a. one element in arithmetic (attention scales, GELU's numbers, epsilons), clip bounds and other static operands;
   b. the scale and bias an exporter puts into a normalisation that has none: those of an InstanceNormalization that
      stands for a GroupNormalization (its channels are reshaped groups, or a per-channel scale follows it), and
      those of any normalisation whose name shows that the exporter made it up (`val_7`, `onnx::Mul_3`), because a
      module's own scale reaches its normalisation under its own name;
   c. an attention mask: added to a product of two activations before a Softmax, the same for every head;
   d. what is subtracted from the raw input, or divides it, element by element (input statistics); running statistics
      outside BatchNormalization, by name; and the tables of a rotary embedding;
   e. in a file that PyTorch wrote, a matrix without a bias whose kept name speaks of no weight and which multiplies
      from the left (a graph's adjacency) or multiplies what nothing learned has touched (a mel filterbank, a DCT).
      Such a matrix is fixed wherever else it is used;
   f. a table that a layer reads as its data (swin's `relative_coords_table`), unless it is repeated over the batch or
      named like something learned (learned queries are).
5. One use as a parameter suffices.

`--train names:GLOB` overrides the rule for any f32 initializer but a statistic.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.passes.provenance import MADE_UP_NAME, MOVEMENT, PRODUCTS, Provenance
from tilegrad.recipe import SELECTIONS, Recipe

__all__ = ["MOVEMENT", "ParameterInfo", "classify", "normalising", "parameters_of", "select", "undecayed"]

_PLAIN_ARITHMETIC = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Where", "Concat"))
_NORMALISATIONS = frozenset(
    ("BatchNormalization", "LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization")
)
_RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
)


@dataclass(frozen=True)
class ParameterInfo:
    """`node` owns the initializer: its layer, for `--train last:K`. `is_bias` is for `--train bias`.

    `is_frozen` is what PyTorch says of a torch module's tensor that never trains, whatever is selected. `is_adapter` is
    a factor that `--train lora:…` put in: none of the model's own. `is_chosen` is what `--train sparse:…` trains.
    """

    name: str
    type: TensorType
    role: str  # "parameter", "statistic" or "constant"
    reason: str
    node: str = ""
    is_bias: bool = False
    is_frozen: bool = False
    is_adapter: bool = False
    is_chosen: bool = False


@dataclass(frozen=True)
class _Use:
    role: str
    reason: str
    node: str = ""
    is_bias: bool = False
    is_fixed: bool = False  # whatever the other uses are


def classify(
    graph: Graph, initializers: Iterable[str] | None = None, *, from_pytorch: bool = False
) -> dict[str, ParameterInfo]:
    """What each initializer is. Without `initializers`, all constants count as the original model's own.

    In files that PyTorch wrote, `from_pytorch`, names that the exporter kept say something too.
    """
    rule = _Rule(graph, from_pytorch)
    names = graph.constants if initializers is None else initializers
    return {name: rule.classify(name) for name in names}


class _Rule:
    def __init__(self, graph: Graph, from_pytorch: bool) -> None:
        self.graph = graph
        self.consumers = graph.consumers()
        self.producers = graph.producers()
        self.constant = set(graph.constants)
        for node in graph.nodes:
            if node.op in ("Shape", "Size") or (
                node.op not in _RANDOM and all(name in self.constant for name in filter(None, node.inputs))
            ):
                self.constant.update(filter(None, node.outputs))
        self.provenance = Provenance(graph, self.producers, self.consumers, self.constant, from_pytorch=from_pytorch)

    def classify(self, name: str) -> ParameterInfo:
        tensor = self.graph.types[name]
        if tensor.dtype is not DType.F32:
            return ParameterInfo(name, tensor, "constant", f"{tensor.dtype}: only f32 trains")
        if self.provenance.is_statistic_by_name(name) and not self._normalises(name):
            return ParameterInfo(
                name, tensor, "constant", "a running statistic by its name, outside BatchNormalization"
            )
        uses = sorted(self._uses(name), key=lambda use: not use.is_fixed)
        if uses and uses[0].is_fixed:
            return ParameterInfo(name, tensor, uses[0].role, uses[0].reason, uses[0].node)
        for role in ("parameter", "statistic", "constant"):
            for use in uses:
                if use.role == role:
                    return ParameterInfo(name, tensor, role, use.reason, use.node, use.is_bias)
        return ParameterInfo(name, tensor, "constant", "nothing reads it")

    def _uses(self, initializer: str) -> Iterator[_Use]:
        """Every place where the initializer, or what is made of it alone, meets an activation."""
        pending, seen = [initializer], {initializer}
        while pending:
            value = pending.pop(0)
            for node in self.consumers.get(value, []):
                for position in (i for i, name in enumerate(node.inputs) if name == value):
                    if self._passes_through(initializer, node, position):
                        fresh = [name for name in node.outputs if name and name not in seen]
                        pending += fresh
                        seen.update(fresh)
                    else:
                        use = self._judge(initializer, node, position)
                        yield replace(use, node=use.node or node.name)

    def _normalises(self, name: str) -> bool:
        return any(node.op == "BatchNormalization" for node in self.consumers.get(name, []))

    def _passes_through(self, initializer: str, node: Node, position: int) -> bool:
        operator = registry.find(node.op)
        if self._is_part_of_a_constant_layer(initializer, node, position):
            return False
        if operator is None or position in operator.static_inputs or position in operator.nondifferentiable_inputs:
            return False
        if not all(name in self.constant for name in filter(None, node.outputs)):
            return node.op in MOVEMENT and self._moved_alone(node, position)
        return node.op in MOVEMENT or self._is_many(initializer)

    def _is_many(self, initializer: str) -> bool:
        """More than one element, or one that has a name of its own."""
        return self.graph.types[initializer].size > 1 or self.provenance.is_learned_number(initializer)

    def _is_part_of_a_constant_layer(self, initializer: str, node: Node, position: int) -> bool:
        """Weights and biases are what they are even where a layer's data is a constant table (swin's position bias)."""
        if not all(name in self.constant for name in node.outputs if name):
            return False
        if node.op in PRODUCTS:
            return position > 0 or self.provenance.is_layer_data(initializer, node, position)
        source = self._through_movement(node.inputs[1 - position]) if node.op == "Add" and position < 2 else None
        return source is not None and self._is_channel_bias(source, self.graph.types[initializer].shape)

    def _moved_alone(self, node: Node, position: int) -> bool:
        """A copy of the initializer whose other operands only say how (an Expand to a shape computed elsewhere)."""
        return position == 0 and node.op not in ("Concat", "Gather")

    def _judge(self, initializer: str, node: Node, position: int) -> _Use:
        operator = registry.find(node.op)
        where = f"{node.op} '{node.name}'"
        many = self._is_many(initializer)
        if operator is None:
            return _Use("constant", f"feeds {where}, which tilegrad does not train")
        if node.op == "BatchNormalization" and position in (3, 4):
            return _Use("statistic", f"running {('mean', 'variance')[position - 3]} of {where}", node.name)
        if position in operator.static_inputs:
            return _Use("constant", f"sets '{operator.static_inputs[position]}' of {where}")
        if node.op in _NORMALISATIONS and position in (1, 2):
            filler = self._filler(initializer, node)
            if filler is not None:
                return _Use("constant", f"{filler} {where}")
            what = ("scale", "bias")[position - 1]
            return _Use("parameter", f"{what} of {where}", node.name, is_bias=position == 2)
        if position in operator.nondifferentiable_inputs:
            return _Use("constant", f"feeds {where}, which passes no gradient to it")
        if node.op in ("Add", "Mul") and len(node.inputs) == 2:
            return self._judge_arithmetic(initializer, node, node.inputs[1 - position])
        if node.op in ("Sub", "Div", "Pow") and len(node.inputs) == 2:
            return self._judge_other_arithmetic(initializer, node, position)
        if self.provenance.is_layer_data(initializer, node, position) and node.outputs[0] in self.constant:
            return _Use("constant", f"a table that {where} reads as its data", is_fixed=True)
        if self.provenance.is_fixed_matrix(initializer, node, position):
            how = "from the left, as a graph's adjacency does," if position == 0 else "before anything learned does,"
            return _Use("constant", f"multiplies {how} without a bias, in {where}", is_fixed=True)
        if many and node.op == "Concat":
            return _Use("parameter", f"a learned token put beside an activation by {where}", node.name)
        if many and node.op == "Where" and not self._reaches_softmax(node.outputs[0]):
            return _Use("parameter", f"a learned token put in place of an activation by {where}", node.name)
        if position in operator.parameter_inputs and node.op not in _PLAIN_ARITHMETIC:
            is_bias = node.op in PRODUCTS and position == 2
            return _Use("parameter", f"{'bias' if is_bias else 'weight'} of {where}", node.name, is_bias)
        return _Use("constant", f"an operand of {where}")

    def _judge_other_arithmetic(self, initializer: str, node: Node, position: int) -> _Use:
        """Subtracted, divided by, an exponent: learned (centres, temperatures, GeM), unless it is done to the raw input
        element by element (input statistics)."""
        where = f"{node.op} '{node.name}'"
        other = node.inputs[1 - position]
        if not self._is_many(initializer):
            return _Use("constant", f"a single number in {where}")
        if node.op == "Pow":
            return _Use("parameter", f"{('base', 'exponent')[position]} of {where}", node.name)
        if self.provenance.enlarges(node, other):
            return _Use("parameter", f"centres: every one meets every value in {where}", node.name)
        if self.provenance.is_raw(other):
            return _Use("constant", f"statistics of the input, in {where}")
        what = "subtracted from" if node.op == "Sub" else "divides"
        return _Use("parameter", f"{what if position else 'combined with'} an activation in {where}", node.name)

    def _judge_arithmetic(self, initializer: str, node: Node, other: str) -> _Use:
        where = f"{node.op} '{node.name}'"
        shape = self.graph.types[initializer].shape
        many = self._is_many(initializer)
        if node.op == "Add":
            source = self._through_movement(other)
            if source is not None and self._is_channel_bias(source, shape):
                return _Use("parameter", f"bias of {source.op} '{source.name}'", source.name, is_bias=True)
            if source is not None and self._is_mask(node, shape) and self._is_product_of_activations(other):
                return _Use("constant", f"an attention mask, added by {where}")
            if many and source is not None and source.op == "Mul" and self._scales_with(source, shape):
                return _Use("parameter", f"bias after {source.op} '{source.name}'", source.name, is_bias=True)
            if many:
                return _Use("parameter", f"added to an activation by {where}", node.name)
            return _Use("constant", f"a single number in {where}")
        if not many:
            return _Use("constant", f"a single number in {where}")
        if self._is_rotary(node, other):
            return _Use("constant", f"a table of a rotary embedding, in {where}")
        return _Use("parameter", f"scales an activation in {where}", node.name)

    def _filler(self, initializer: str, node: Node) -> str | None:
        """Why a normalisation's scale or bias is none of the model's own, or None."""
        if MADE_UP_NAME.fullmatch(initializer):
            return "made up by the exporter for"
        if node.op != "InstanceNormalization":
            return None
        before = self.producers.get(node.inputs[0])
        after = self.consumers.get(node.outputs[0], [])
        if before is None or before.op != "Reshape" or [reader.op for reader in after] != ["Reshape"]:
            return None
        source = self.graph.types.get(before.inputs[0])
        groups = self.graph.types[node.inputs[1]].size if node.inputs[1] in self.graph.types else None
        if source is not None and source.rank > 1 and groups is not None and source.shape[1] != groups:
            return "stands in for the groups of a GroupNormalization in"
        for reader in self.consumers.get(after[0].outputs[0], []):
            if reader.op == "Mul" and any(self._is_scale(name) for name in reader.inputs):
                return "followed by the real scale, so filling in for it in"
        return None

    def _is_scale(self, value: str) -> bool:
        """Reaches back to one initializer of several elements."""
        root = self._initializer_behind(value)
        return root is not None and self.graph.types[root].size > 1

    def _initializer_behind(self, value: str) -> str | None:
        return self.provenance.root(value)

    def _through_movement(self, value: str) -> Node | None:
        """The operator that computed a value, views and copies apart."""
        node = self.producers.get(value)
        while node is not None and node.op in MOVEMENT and node.op not in ("Concat", "Gather"):
            node = self.producers.get(node.inputs[0])
        return node

    def _is_channel_bias(self, source: Node, shape: tuple[int, ...]) -> bool:
        """One element per output channel of a product with a weight."""
        if source.op not in PRODUCTS or len(source.inputs) < 2:
            return False
        weight = self._initializer_behind(source.inputs[1])
        if weight is None:
            return False
        channels = [extent for extent in shape if extent != 1] or [1]
        return len(shape) > 0 and len(channels) == 1 and channels[0] in self.graph.types[weight].shape

    def _scales_with(self, source: Node, shape: tuple[int, ...]) -> bool:
        """A Mul with a parameter of the same shape: the affine part of a decomposed normalisation."""
        roots = [self._initializer_behind(name) for name in source.inputs]
        return any(root is not None and self.graph.types[root].shape == shape for root in roots)

    def _is_product_of_activations(self, value: str) -> bool:
        node = self._through_movement(value)
        while node is not None and node.op in ("Mul", "Div", "Add", "Where"):
            varying = [name for name in node.inputs if name and name not in self.constant]
            node = self._through_movement(varying[-1]) if varying else None
        return node is not None and node.op == "MatMul" and not any(name in self.constant for name in node.inputs)

    def _is_mask(self, node: Node, shape: tuple[int, ...]) -> bool:
        same_for_all_heads = len(shape) < 3 or shape[-3] == 1
        return same_for_all_heads and self._reaches_softmax(node.outputs[0])

    def _reaches_softmax(self, value: str) -> bool:
        """Through views, masks and scales only."""
        pending = [value]
        for _ in range(8):
            readers = [node for name in pending for node in self.consumers.get(name, [])]
            if any(node.op in ("Softmax", "LogSoftmax") for node in readers):
                return True
            steps = MOVEMENT | {"Add", "Where", "Mul", "Div"}
            pending = list(dict.fromkeys(node.outputs[0] for node in readers if node.op in steps))
        return False

    def _is_rotary(self, node: Node, other: str) -> bool:
        """`x * cos + rotated(x) * sin`, or `x1 * cos - x2 * sin`, with tables that are initializers."""
        for reader in self.consumers.get(node.outputs[0], []):
            if reader.op not in ("Add", "Sub") or len(reader.inputs) != 2:
                continue
            products = [self.producers.get(name) for name in reader.inputs]
            if not all(p is not None and p.op == "Mul" and any(self._is_scale(i) for i in p.inputs) for p in products):
                continue
            rotated = (name for p in products if p is not None for name in p.inputs if name not in self.constant)
            if reader.op == "Sub" or any(self._is_half_turn(name) for name in rotated):
                return True
        return False

    def _is_half_turn(self, value: str) -> bool:
        concat = self.producers.get(value)
        if concat is None or concat.op != "Concat":
            return False
        return any((p := self.producers.get(name)) is not None and p.op == "Neg" for name in concat.inputs)


def parameters_of(infos: Mapping[str, ParameterInfo]) -> tuple[str, ...]:
    """Names of the model's own parameters that can train, in initializer order."""
    return tuple(
        name for name, info in infos.items() if info.role == "parameter" and not info.is_frozen and not info.is_adapter
    )


def normalising(graph: Graph) -> frozenset[str]:
    """The scales and biases of normalisations, decomposed ones included where they were found to be one."""
    operands = (name for node in graph.nodes if node.op in _NORMALISATIONS for name in node.inputs[1:3])
    return frozenset(name for name in operands if name in graph.constants)


def undecayed(graph: Graph, infos: Mapping[str, ParameterInfo], recipe: Recipe) -> frozenset[str]:
    """What weight decay leaves alone under this recipe."""
    if recipe.decay == "all":
        return frozenset()
    return normalising(graph) | {name for name, info in infos.items() if info.is_bias}


def select(graph: Graph, infos: Mapping[str, ParameterInfo], selector: str) -> tuple[str, ...]:
    """Names of the initializers that train, in initializer order. `+` joins selections."""
    chosen = {name for part in selector.split("+") for name in _selected(graph, infos, part)}
    return tuple(name for name in infos if name in chosen)


def _selected(graph: Graph, infos: Mapping[str, ParameterInfo], selector: str) -> tuple[str, ...]:
    kind, _, rest = selector.partition(":")
    if selector == "all":
        chosen = parameters_of(infos)
    elif selector == "bias":
        chosen = tuple(name for name in parameters_of(infos) if infos[name].is_bias)
    elif selector == "norm":
        scales = normalising(graph)
        chosen = tuple(name for name in parameters_of(infos) if name in scales)
    elif kind == "sparse" and rest:
        chosen = tuple(name for name in infos if infos[name].is_chosen)
    elif kind == "lora":
        chosen = tuple(name for name in infos if infos[name].is_adapter)
    elif kind == "last" and rest:
        chosen = _last(graph, infos, rest)
    elif kind == "names" and rest:
        chosen = _matching(graph, infos, rest.split(","))
    else:
        raise UserError(
            f"cannot select what trains with '{selector}'",
            stage="recipe",
            expected=SELECTIONS,
            got=selector or "nothing",
        )
    if not chosen:
        raise UserError(
            "the model has nothing to train" if selector == "all" else f"'{selector}' selects nothing to train",
            stage="recipe",
            got=_census(infos),
            hint="`tilegrad inspect MODEL --parameters` lists what each initializer is, and why",
        )
    return chosen


def _census(infos: Mapping[str, ParameterInfo]) -> str:
    roles = [info.role for info in infos.values()]
    return f"{len(roles)} initializers: " + ", ".join(
        f"{roles.count(role)} {role}s" for role in ("parameter", "statistic", "constant")
    )


def _last(graph: Graph, infos: Mapping[str, ParameterInfo], count: str) -> tuple[str, ...]:
    """A layer is a node that owns parameters; a bias that is added belongs to the product it is added to."""
    if not count.isdecimal() or int(count) < 1:
        raise UserError("last:K takes a number of layers", stage="recipe", expected="1 or more", got=count)
    layers = layers_of(graph, infos)
    if layers and int(count) > len(layers):
        raise UserError(
            f"the model has {len(layers)} layer{'s' if len(layers) > 1 else ''} with parameters",
            stage="recipe",
            expected=f"last:1 to last:{len(layers)}",
            got=f"last:{count}",
            hint="--train all trains every one",
        )
    wanted = set(sorted(layers, key=layers.__getitem__)[-int(count) :])
    return tuple(name for name in parameters_of(infos) if infos[name].node in wanted)


def layers_of(graph: Graph, infos: Mapping[str, ParameterInfo]) -> dict[str, int]:
    """The nodes that own parameters, with their places."""
    order = {node.name: position for position, node in enumerate(graph.nodes)}
    first_read = {name: order[readers[0].name] for name, readers in graph.consumers().items()}
    layers: dict[str, int] = {}
    for name in parameters_of(infos):  # the owner may have been fused away; then its parameters' first reader stands
        owner = infos[name].node
        layers[owner] = max(layers.get(owner, -1), order.get(owner, first_read.get(name, -1)))
    return layers


def _matching(graph: Graph, infos: Mapping[str, ParameterInfo], globs: list[str]) -> tuple[str, ...]:
    chosen: set[str] = set()
    for glob in globs:
        matches = [name for name in infos if fnmatchcase(name, glob)]
        if not matches:
            near = difflib.get_close_matches(glob.strip("*?"), list(infos), n=4, cutoff=0.3)
            some = ", ".join(list(infos)[:8]) or "no initializers"
            raise UserError(
                f"no initializer is called '{glob}'",
                stage="recipe",
                hint=f"near names: {', '.join(near)}" if near else f"the model has {some}",
            )
        trainable = [
            name
            for name in matches
            if infos[name].type.dtype is DType.F32 and infos[name].role != "statistic" and not infos[name].is_frozen
        ]
        if not trainable:
            first = infos[matches[0]]
            raise UserError(
                f"'{glob}' matches nothing that can train",
                stage="recipe",
                got=f"'{first.name}' is {first.type}, {first.reason}",
                hint="in PyTorch, requires_grad_(True) says that a parameter trains" if first.is_frozen else None,
            )
        folded = [name for name in trainable if name not in graph.constants]
        if folded and len(folded) == len(trainable):
            raise UserError(
                f"'{glob}' matches nothing that can train",
                stage="recipe",
                got=f"'{folded[0]}' was folded away at import: {infos[folded[0]].reason}",
            )
        chosen.update(name for name in trainable if name in graph.constants)
    return tuple(name for name in infos if name in chosen)
