"""The worker: one model in one process, batched continuously.

Axes of arrays have fixed letters: ``B`` rows, ``L`` tokens of this step, ``T`` tokens in
the cache, ``H``/``Hkv`` heads, ``D`` head size, ``V`` vocabulary.
"""
