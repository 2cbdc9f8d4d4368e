"""Chat templates in the ways of known families, and tokenizers that have them."""

import json
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from bramley.worker.models.mlx_lm import load_tokenizer
from bramley.worker.text.tokenizer import Tokenizer
from support.byte_tokenizer import write_byte_tokenizer

# Reasoning is dropped from all before what the user said last; the prompt may open it.
REASONING = """\
{%- if tools %}[tools]{% for tool in tools %}{{ tool | tojson }}{% endfor %}[/tools]{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}<a>
{%- if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>
{%- elif loop.last %}<think></think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}[call {{ call.function.name }}
{%- for key, value in call.function.arguments | items %} {{ key }}={{ value }}
{%- endfor %}]{% endfor %}
{%- else %}<{{ m.role[0] }}>{{ m.content }}{% endif %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<a>
{%- if enable_thinking is false %}<think></think>{% else %}<think>{% endif %}
{%- endif %}"""

# Tools stand before what the user said last, so that the next turn moves them.
TOOLS_LAST = """\
{%- for m in messages %}
{%- if loop.last and m.role == 'user' and tools %}[tools]{{ tools | tojson }}[/tools]{% endif -%}
<{{ m.role[0] }}>{{ m.content }}
{%- for call in m.tool_calls or [] %}[call {{ call.function.name }}]{% endfor %}<|end|>
{%- endfor %}{% if add_generation_prompt %}<a>{% endif %}"""

# Knows no system message, and writes the first token itself.
NO_SYSTEM = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}{% endif %}
{%- if m.role not in ['user', 'assistant'] %}
{{- raise_exception('Unknown role ' + m.role) }}{% endif -%}
<{{ m.role }}>{{ m.content }}<|end|>
{%- endfor %}{% if add_generation_prompt %}<model>{% endif %}"""


def tokenizer_with(folder: Path, template: str) -> Tokenizer:
    """A tokenizer of bytes that has a template, a first token of every text, and reasoning."""
    folder.mkdir()
    write_byte_tokenizer(folder, chat_template=template)
    file = folder / "tokenizer.json"
    backend = Backend.from_file(str(file))
    backend.add_special_tokens([AddedToken("<bos>", normalized=False)])
    backend.add_tokens([AddedToken(mark, normalized=False) for mark in ("<think>", "</think>")])
    bos = backend.token_to_id("<bos>")
    backend.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    backend.save(str(file))
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "bos_token": "<bos>"}))
    (folder / "config.json").write_text('{"model_type": "llama", "eos_token_id": 257}')
    (folder / "model.safetensors").touch()
    return Tokenizer(load_tokenizer(folder))
