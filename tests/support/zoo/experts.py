"""Configs of plain transformers of which every token uses a part: mixtures of experts."""

from support.zoo.shapes import EXPERTS, SHAPE, VOCABULARY, Config

_QWEN3: Config = {"model_type": "qwen3_moe", **SHAPE, **EXPERTS}

CONFIGS: dict[str, Config] = {
    name: {"model_type": name, **SHAPE, **EXPERTS, **own}
    for name, own in {
        "Klear": {},
        "bailing_moe": {"use_qk_norm": True},
        "dbrx": {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        },
        "deepseek": {},
        "dots1": {},
        "ernie4_5_moe": {
            "use_bias": False,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
        "glm4_moe": {"rope_scaling": None, "use_qk_norm": True, "partial_rotary_factor": 0.5},
        "granitemoe": {
            "logits_scaling": 2.0,
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
        },
        "hunyuan": {
            "moe_topk": 2,
            "num_shared_expert": 1,
            "use_mixed_mlp_moe": True,
            "use_qk_norm": True,
            "use_cla": True,  # the second layer reads the first one's keys
            "cla_share_factor": 2,
            "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
        },
        "minimax": {"shared_intermediate_size": 32, "rotary_dim": 8},
        "mixtral": {},
        "olmoe": {},
        "phimoe": {
            "original_max_position_embeddings": 32,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [1.5 + 0.25 * i for i in range(8)],
                "long_mscale": 1.2,
                "short_mscale": 1.2,
            },
        },
        "phixtral": {
            "num_vocab": VOCABULARY,
            "model_dim": 64,
            "num_heads": 4,
            "num_layers": 2,
            "rotary_dim": 8,
        },
        "qwen2_moe": {},
        "qwen3_moe": {},
        "qwen3_vl_moe": {"text_config": _QWEN3},
        "solar_open": {"partial_rotary_factor": 0.5, "use_qk_norm": True},
        "llama4_text": {
            "intermediate_size_mlp": 96,
            "no_rope_layers": [1, 0],
            "use_qk_norm": True,
        },
        "llama4": {
            "text_config": {
                "model_type": "llama4_text",
                **SHAPE,
                **EXPERTS,
                "num_experts_per_tok": 1,
                "attention_chunk_size": 16,
                "interleave_moe_layer_step": 2,
                "intermediate_size_mlp": 96,
                "num_hidden_layers": 4,
                "rope_scaling": None,
                "use_qk_norm": True,
                "floor_scale": 16,
            }
        },
    }.items()
}
