"""Prints what was found out, for people: units at every number, 80 columns wide."""

from collections.abc import Mapping

import typer

from bramley.bench.inventory.record import ConfigFacts, Fit, Inventory, StateFacts
from bramley.client.commands.screen import print_table, size_text

_NOT_YET = "not known before a worker has loaded it here"


def show_inventory(found: Inventory) -> None:
    """Print an inventory."""
    _facts(
        {
            "model": found.path,
            "files": _files(found),
            "parameters": f"{found.parameters:,} in {found.tensor_count:,} tensors",
            "stored": f"{size_text(found.nbytes)}, {found.bits:.2f} bits a parameter",
            "dtypes": _shares(found.dtypes),
            **({"loaded": _loaded(found)} if found.weights_bytes is not None else {}),
            **_config(found.config),
            "reasoning": _writes(found.reasoning_format),
            "tools": _writes(found.tool_format),
            "lane": found.lane or _NOT_YET,
        }
    )
    for name in found.missing:
        typer.echo(f"missing: {name}, which the index lists")
    if found.absent:
        typer.echo(f"missing: {len(found.absent)} tensors that the index lists: {found.absent[0]}")
    typer.echo()
    print_table(
        ("tensors", "count", "parameters", "bytes", "bits", "stored as"),
        [
            (
                each.kind,
                f"{each.tensors:,}",
                f"{each.parameters:,}",
                size_text(each.nbytes),
                f"{each.bits:.2f}",
                _shares(each.schemes, most=2),
            )
            for each in found.groups
        ],
    )
    typer.echo()
    if found.state is None:
        typer.echo(f"state of rows: not known: {found.unknown}")
    else:
        _show_state(found.state)
    if found.tensors is not None:
        typer.echo()
        print_table(
            ("tensor", "dtype", "shape", "bytes"),
            [
                (each.name, each.dtype, "x".join(map(str, each.shape)), f"{each.nbytes:,}")
                for each in found.tensors
            ],
        )


def show_fit(found: Fit) -> None:
    """Print a prediction and the verdict."""
    rows = f"{found.batch} x {found.context_tokens:,} tokens"
    _facts({"model": found.path, "computes": f"{found.dtype} on {found.backend}", "rows": rows})
    typer.echo()
    print_table(
        ("takes", "", "of it"),
        [
            ("weights", _exact(found.weights_bytes), f"files: {size_text(found.files_bytes)}"),
            *(
                (
                    f"state, {part.kind}",
                    _exact(part.nbytes),
                    f"{part.layers} layers, tokens alone: {size_text(part.exact_bytes)}",
                )
                for part in found.state
            ),
            ("workspace", _exact(found.workspace_bytes), "at most, of a chunk in full size"),
            ("process", _exact(found.process_bytes), "Python and its libraries"),
            ("total", _exact(found.total_bytes), ""),
            ("may take", _exact(found.budget_bytes), _budget(found)),
            ("machine", _exact(found.machine_bytes), "memory that processes may use"),
        ],
    )
    typer.echo()
    for note in found.notes:
        typer.echo(f"note: {note}")
    largest_context = f"{found.largest_context:,} tokens" if found.largest_context else "none"
    typer.echo(f"largest context of {found.batch} rows: {largest_context}")
    typer.echo(f"most rows of {found.context_tokens:,} tokens: {found.largest_batch or 'none'}")
    typer.echo(_verdict(found))


def _writes(name: str | None) -> str:
    """Say how a model writes something."""
    return _NOT_YET if name is None else name or "no"


def _verdict(found: Fit) -> str:
    over = found.total_bytes - found.budget_bytes
    if found.fits:
        return f"fits: {size_text(-over)} are left"
    if over <= 0:
        return "does not fit: the settings leave less to rows"
    return f"does not fit: {size_text(over)} too much"


def _budget(found: Fit) -> str:
    return f"beside {size_text(found.store_bytes)} of the cache store" if found.store_bytes else ""


def _show_state(state: StateFacts) -> None:
    typer.echo(f"state of rows, in {state.dtype} on {state.backend}:")
    print_table(
        ("layers", "kind", "a token", "grows", "a row beside"),
        [
            (
                str(each.layers),
                each.kind,
                f"{each.token_bytes:,} B" if each.token_bytes else "",
                _grows(each.grows_to_tokens),
                f"{each.fixed_bytes:,} B" if each.fixed_bytes else "",
            )
            for each in state.layers
        ],
    )
    fixed = f", and {size_text(state.fixed_bytes)} a row" if state.fixed_bytes else ""
    typer.echo(f"a long row takes {state.token_bytes:,} B a token{fixed}")


def _grows(tokens: int | None) -> str:
    if tokens is None:
        return "with each token"
    return f"up to {tokens:,} tokens" if tokens else "never"


def _facts(facts: Mapping[str, str]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:<{width}}  {value}")


def _files(found: Inventory) -> str:
    kind = "GGUF" if found.format == "gguf" else "safetensors"
    return f"{len(found.files)} {kind}, {size_text(sum(found.files.values()))}"


def _loaded(found: Inventory) -> str:
    state = found.state
    where = f" as {state.dtype} on {state.backend}" if state else ""
    return f"{size_text(found.weights_bytes or 0)}{where}"


def _config(told: ConfigFacts) -> dict[str, str]:
    size = f" of {told.head_size}" if told.head_size else ""
    numbers = {
        "layers": told.layers,
        "hidden": told.hidden,
        "context": told.context_tokens,
        "vocabulary": told.vocabulary,
    }
    has = {True: "yes", False: "no"}
    return {
        "architecture": told.architecture or "not told",
        **{name: f"{number:,}" for name, number in numbers.items() if number},
        **({"heads": f"{told.heads}{size}, {told.kv_heads} of keys"} if told.heads else {}),
        "embeddings": "tied" if told.tied_embeddings else "not tied",
        "tokenizer": has[told.tokenizer],
        "template": has[told.chat_template],
    }


def _shares(nbytes: Mapping[str, int], most: int = 4) -> str:
    total = sum(nbytes.values()) or 1
    if len(nbytes) == 1:
        return next(iter(nbytes))
    shown = [f"{name} {part / total:.0%}" for name, part in list(nbytes.items())[:most]]
    return ", ".join(shown) + (", …" if len(nbytes) > most else "")


def _exact(nbytes: int) -> str:
    return size_text(nbytes)
