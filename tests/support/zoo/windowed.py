"""Configs of models with layers that see a window only, beside full ones."""

from support.zoo.shapes import EXPERTS, FULL, PLAIN_ROPE, SHAPE, SLIDING, VOCABULARY, WINDOW, Config

_MIXED: Config = {"layer_types": [SLIDING, FULL], "sliding_window": WINDOW}
_BOTH_ROPES: Config = {
    FULL: PLAIN_ROPE | {"partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0},
}
_MINISTRAL3: Config = {
    "model_type": "ministral3",
    **SHAPE,
    **_MIXED,
    "rope_parameters": PLAIN_ROPE
    | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16},
}
_GEMMA3: Config = {
    "model_type": "gemma3_text",
    **SHAPE,
    "num_hidden_layers": 3,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 16.0,
}
_GEMMA4: Config = {
    "model_type": "gemma4_text",
    **SHAPE,
    "num_hidden_layers": 4,  # the last two read the keys of the first two
    "layer_types": [SLIDING, FULL] * 2,
    "sliding_window": WINDOW,
    "global_head_dim": 32,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCABULARY,
}
_GEMMA3N: Config = {
    "model_type": "gemma3n_text",
    **SHAPE,
    "num_hidden_layers": 4,  # likewise
    "intermediate_size": [96] * 4,
    "layer_types": [SLIDING, FULL] * 2,
    "sliding_window": WINDOW,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "rope_local_base_freq": 1000.0,
    "final_logit_softcapping": 30.0,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    "altup_num_inputs": 2,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 8,
}

CONFIGS: dict[str, Config] = {
    name: {"model_type": name.partition(" ")[0], **SHAPE, **own}
    for name, own in {
        "llama swa": _MIXED,
        "smollm3 swa": _MIXED | {"no_rope_layer_interval": 2},
        "afmoe": EXPERTS | _MIXED | {"num_dense_layers": 1},
        "cohere2": {"sliding_window": WINDOW, "sliding_window_pattern": 2},
        "exaone4": {
            "num_hidden_layers": 3,
            "rope_scaling": None,
            "sliding_window": WINDOW,
            "sliding_window_pattern": "LGL",
        },
        "exaone_moe": EXPERTS | _MIXED | {"is_moe_layer": [False, True]},
        "gemma3": {"vocab_size": VOCABULARY, "text_config": _GEMMA3},
        "gemma3_text": _GEMMA3,
        "gemma3n": {"text_config": _GEMMA3N},
        "gemma4": {"vocab_size": VOCABULARY, "text_config": _GEMMA4},
        "gemma4_text": _GEMMA4,
        "gemma4_text experts": _GEMMA4
        | EXPERTS
        | {
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "top_k_experts": 2,
        },
        "gpt_oss": EXPERTS | _MIXED,
        "iquestloopcoder": {"loop_window_size": WINDOW},
        "laguna": EXPERTS | _MIXED | {"rope_parameters": _BOTH_ROPES},
        "mellum": EXPERTS | _MIXED | {"rope_parameters": _BOTH_ROPES},
        "mimo_v2_flash": EXPERTS
        | {
            "hybrid_layer_pattern": [1, 0],
            "moe_layer_freq": [0, 1],
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
            "sliding_window_size": WINDOW,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "layernorm_epsilon": 1e-5,
            "swa_rope_theta": 1000.0,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 1,
            "v_head_dim": 8,
            "swa_head_dim": 24,
            "swa_v_head_dim": 8,
            "partial_rotary_factor": 0.5,
        },
        "ministral3": _MINISTRAL3,
        "mistral3 ministral3": {"text_config": _MINISTRAL3},
        "muse_glimmer": _MIXED,
        "olmo3": _MIXED,
        "plamo3": {"window_size": WINDOW, "sliding_window_pattern": 2},
        "plamo3 wide": {"window_size": 16, "sliding_window_pattern": 2},
        "spark2_5": _MIXED | {"rope_parameters": _BOTH_ROPES},
        "step3p5": _MIXED
        | {
            "num_attention_groups": 2,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "moe_intermediate_size": 32,
            "share_expert_dim": 32,
            "moe_layers_enum": "1",
            "attention_other_setting": {"num_attention_heads": 2, "num_attention_groups": 1},
        },
    }.items()
}
