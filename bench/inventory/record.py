"""What `bramley inventory` and `bramley fit` tell: what ``--json`` prints."""

import msgspec

SCHEMA = 1


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors of one kind: "embedding", "attention", "MLP" and so on.

    Attributes:
        tensors: as the files count them; scales and biases are some.
        parameters: values that they stand for, however they are packed.
        nbytes: in the files.
        bits: of a parameter, its share of scales and biases included.
        schemes: bytes by how the values are stored.
    """

    kind: str
    tensors: int
    parameters: int
    nbytes: int
    bits: float
    schemes: dict[str, int]


class TensorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of the files."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str


class ConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says; None where it says nothing.

    Attributes:
        heads: query heads of a layer.
        mlp: widest that a token gets in a layer; of experts, all that it goes through.
        tied_embeddings: whether the head is the embedding.
        tokenizer: whether there is one, as for the chat template.
    """

    architecture: str | None
    layers: int | None = None
    hidden: int | None = None
    mlp: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    context_tokens: int | None = None
    vocabulary: int | None = None
    tied_embeddings: bool = False
    tokenizer: bool = False
    chat_template: bool = False


class LayerState(msgspec.Struct, frozen=True, kw_only=True):
    """What all layers of one kind keep of a row.

    Attributes:
        kind: "full", "latent", "rotating" or "recurrent".
        layers: how many keep it; a layer may keep several.
        token_bytes: of each token more, as long as it grows.
        grows_to_tokens: None where it grows with every token; 0 where it never does.
        fixed_bytes: of a row, however long.
    """

    kind: str
    layers: int
    token_bytes: int
    grows_to_tokens: int | None
    fixed_bytes: int

    def row_bytes(self, tokens: int) -> int:
        """What a row of so many tokens takes, spare room left out."""
        grown = tokens if self.grows_to_tokens is None else min(tokens, self.grows_to_tokens)
        return self.fixed_bytes + self.token_bytes * grown


class StateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What rows keep, as this machine would compute.

    Attributes:
        backend: "cpu", "metal" or "cuda".
        dtype: that the model computes in.
        token_bytes: of each token of a long row, of all layers.
        fixed_bytes: of a row beside, however long it gets.
    """

    backend: str
    dtype: str
    layers: list[LayerState]
    token_bytes: int
    fixed_bytes: int


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is made of.

    Attributes:
        format: "folder" or "gguf".
        files: bytes of the weight files.
        missing: weight files that the index lists and that are not there.
        absent: tensors that the index lists and that no file has.
        weights_bytes: of parameters in memory, as this machine would load them; None if unknown.
        state: None where ``unknown`` says why.
        lane: how requests share forwards, as a worker found out; None if none has yet.
        reasoning_format: how it writes its reasoning; empty where it does not; None if unknown.
        tool_format: how it writes calls of tools; likewise.
        tensors: None unless asked for.
    """

    schema: int = SCHEMA
    path: str
    format: str
    files: dict[str, int]
    missing: list[str]
    absent: list[str]
    tensor_count: int
    parameters: int
    nbytes: int
    bits: float
    dtypes: dict[str, int]
    groups: list[Group]
    config: ConfigFacts
    weights_bytes: int | None
    state: StateFacts | None
    unknown: str
    lane: str | None
    reasoning_format: str | None = None
    tool_format: str | None = None
    tensors: list[TensorFacts] | None = None


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """Room of one kind of state.

    Attributes:
        nbytes: spare room included.
        exact_bytes: of the tokens alone.
    """

    kind: str
    layers: int
    nbytes: int
    exact_bytes: int


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes, beside what there is.

    Attributes:
        context_tokens: of each row.
        batch: rows.
        process_bytes: of the worker's process beside what MLX holds.
        budget_bytes: that this model may take: of models and store together, less the store's.
        machine_bytes: memory of this machine.
        largest_context: that fits with as many rows; 0 where none does.
        largest_batch: likewise, with as many tokens.
        notes: what else bounds it.
    """

    schema: int = SCHEMA
    path: str
    backend: str
    dtype: str
    lane: str | None
    context_tokens: int
    batch: int
    weights_bytes: int
    files_bytes: int
    state: list[StatePart]
    state_bytes: int
    workspace_bytes: int
    process_bytes: int
    total_bytes: int
    budget_bytes: int
    store_bytes: int
    machine_bytes: int
    fits: bool
    largest_context: int
    largest_batch: int
    notes: list[str]
