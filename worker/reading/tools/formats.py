"""The formats in which calls of tools are read and written, by the name that mlx-lm gives each."""

from collections.abc import Mapping

from bramley.worker.reading.tools import (
    function_gemma,
    gemma4,
    glm47,
    json_tools,
    kimi_k2,
    kimi_k3,
    laguna,
    longcat,
    minicpm5,
    minimax_m2,
    mistral,
    muse_spark,
    pythonic,
    qwen3_coder,
)
from bramley.worker.reading.tools.contract import ToolFormat

FORMATS: Mapping[str, ToolFormat] = {
    one.name: one
    for one in (
        function_gemma.FORMAT,
        gemma4.FORMAT,
        glm47.FORMAT,
        json_tools.FORMAT,
        kimi_k2.FORMAT,
        kimi_k3.FORMAT,
        laguna.FORMAT,
        longcat.FORMAT,
        minicpm5.FORMAT,
        minimax_m2.FORMAT,
        mistral.FORMAT,
        muse_spark.FORMAT,
        pythonic.FORMAT,
        qwen3_coder.FORMAT,
    )
}
