"""Configs of plain transformers: full attention in every layer, one product after another."""

from support.zoo.shapes import DYNAMIC, SHAPE, YARN, Config

_LLAMA3: Config = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LONG: Config = {
    "type": "longrope",
    "rope_type": "longrope",
    "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 8,
    "long_factor": [1.5 + 0.25 * i for i in range(8)],
}

CONFIGS: dict[str, Config] = {
    name: {"model_type": name.partition(" ")[0], **SHAPE, **own}
    for name, own in {
        "llama": {},
        "llama linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "llama llama3": {"rope_scaling": _LLAMA3},
        "llama longrope": {"rope_scaling": _LONG},
        "llama yarn": {"rope_scaling": YARN},
        "llama dynamic": DYNAMIC,
        "internlm3 dynamic": DYNAMIC,
        "afm7": {  # the last layers read the keys of the one before them
            "hidden_dim": 64,
            "num_layers": 4,
            "num_kv_reuse_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "hidden_dim_scale_factor": 1.5,
        },
        "apertus": {"post_norm": False, "qk_norm": True},
        "cohere": {"use_qk_norm": True},
        "ernie4_5": {"use_bias": True},
        "exaone": {"num_layers": 2, "tie_word_embeddings": False},
        "gemma": {},
        "gemma2": {"query_pre_attn_scalar": 16.0},
        "glm": {},
        "glm4": {"partial_rotary_factor": 0.5},
        "gpt2": {"n_ctx": 512, "n_positions": 512, "n_embd": 64, "n_head": 4, "n_layer": 2},
        "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.5},
        "gptj": {"n_embd": 64, "n_positions": 512, "n_head": 4, "n_layer": 2, "rotary_dim": 8},
        "granite": {
            "logits_scaling": 2.0,
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
        },
        "helium": {},
        "hunyuan_v1_dense": {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
        "internlm2": {},
        "internlm3": {"qkv_bias": True},
        "lille-130m": {
            "block_size": 512,
            "n_embd": 64,
            "n_head": 4,
            "n_kv_heads": 2,
            "n_layer": 2,
        },
        "mimo": {},
        "minicpm": {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 3.0},
        "mistral3": {"text_config": {"model_type": "llama", **SHAPE}},
        "nanbeige": {"num_loops": 2},
        "nanochat": {},
        "nemotron": {"hidden_act": "relu2"},
        "nemotron-nas": {
            "num_hidden_layers": 3,
            "block_configs": [
                {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
                {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.5}},
                {"attention": {"n_heads_in_group": 4}, "ffn": {"replace_with_linear": True}},
            ],
        },
        "olmo2": {},
        "openelm": {
            "num_transformer_layers": 2,
            "model_dim": 64,
            "ffn_dim_divisor": 16,
            "num_query_heads": [4, 2],
            "num_kv_heads": [2, 1],
            "ffn_multipliers": [1.0, 1.5],
            "share_input_output_layers": False,
        },
        "phi": {"partial_rotary_factor": 0.5},
        "phi3": {"partial_rotary_factor": 0.5},
        "phi3 su": {"original_max_position_embeddings": 32, "rope_scaling": _LONG},
        "pixtral": {"text_config": {"model_type": "llama", **SHAPE}},
        "plamo": {"n_shared_head": 2},
        "qwen": {"kv_channels": 16},
        "qwen2": {},
        "qwen2_vl": {"text_config": {"model_type": "qwen2", **SHAPE}},
        "qwen3": {},
        "qwen3_vl": {"text_config": {"model_type": "qwen3", **SHAPE}},
        "seed_oss": {"attention_bias": True},
        "smollm3": {"no_rope_layer_interval": 2},  # every second layer has no positions
        "stablelm": {"use_qkv_bias": True, "partial_rotary_factor": 0.5, "qk_layernorm": True},
        "starcoder2": {"tie_word_embeddings": False},
        "talkie": {},
        "telechat3": {},
        "gpt_bigcode": {
            "n_embd": 64,
            "n_layer": 2,
            "n_inner": 96,
            "n_head": 4,
            "n_positions": 512,
            "tie_word_embeddings": False,
        },
        "phi3small": {
            "dense_attention_every_n_layers": 2,
            "ff_intermediate_size": 96,
            "gegelu_limit": 20.0,
            "vocab_size": 100_352,  # writes to token ids up to there
            "blocksparse_block_size": 32,
            "blocksparse_num_local_blocks": 2,
            "blocksparse_vert_stride": 2,
        },
    }.items()
}
