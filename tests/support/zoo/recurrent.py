"""Configs of models with layers whose memory has one size: recurrences and short convolutions."""

from support.zoo.shapes import EXPERTS, FULL, LATENT, PLAIN_ROPE, SHAPE, SLIDING, WINDOW, Config

_LINEAR = "linear_attention"
_DELTA: Config = {
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_QWEN35: Config = {
    "model_type": "qwen3_5_text",
    **SHAPE,
    **_DELTA,
    "rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": 0.5},
}
_KIMI: Config = {
    "linear_attn_config": {
        "kda_layers": [1, 3],  # counted from 1
        "full_attn_layers": [2],
        "num_heads": 4,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
    },
    "num_hidden_layers": 3,
    "num_experts_per_token": 2,
    "model_max_length": 4096,
}
_GRANITE: Config = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_proj_bias": False,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_conv_bias": True,
    "shared_intermediate_size": 32,
}
_LFM2: Config = {
    "num_hidden_layers": 3,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 64,
    "block_multiple_of": 16,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "layer_types": ["conv", FULL, "conv"],
}
_LING: Config = {
    "num_hidden_layers": 3,
    "layer_group_size": 2,
    "group_norm_size": 2,
    "use_qk_norm": True,
}

CONFIGS: dict[str, Config] = {
    name: {"model_type": name.partition(" ")[0], **SHAPE, **own}
    for name, own in {
        "baichuan_m1": {
            "sliding_window": WINDOW,
            "sliding_window_layers": [1],
            "conv_window": 2,
            "num_swa_attention_heads": 4,
            "num_swa_key_value_heads": 2,
        },
        "bailing_hybrid": EXPERTS | LATENT | _LING,
        "bailing_moe_linear": EXPERTS | _LING | {"partial_rotary_factor": 0.5},
        "bailing_moe_v3": EXPERTS
        | LATENT
        | _LING
        | {"head_dim": 32, "moe_shared_expert_intermediate_size": 32},
        "falcon_h1": {
            "mamba_d_head": 16,
            "mamba_d_ssm": 64,
            "mamba_d_state": 16,
            "mamba_n_heads": 4,
            "lm_head_multiplier": 1.0,
        },
        "gear": {
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, "conv_mixer", FULL],
            "sliding_window": WINDOW,
        },
        "granitemoehybrid": EXPERTS | _GRANITE,
        "granitemoehybrid nope": EXPERTS | _GRANITE | {"position_embedding_type": "nope"},
        "jamba": EXPERTS
        | {
            "num_hidden_layers": 3,
            "attn_layer_offset": 1,
            "attn_layer_period": 2,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_conv": 4,
            "mamba_d_state": 8,
            "mamba_expand": 2,
        },
        "kimi_k3": {
            "text_config": SHAPE
            | EXPERTS
            | LATENT
            | _KIMI
            | {"attn_res_block_size": 2, "activation_situ_beta": 1.0}
        },
        "kimi_linear": EXPERTS | LATENT | _KIMI,
        "lfm2": _LFM2,
        "lfm2-vl": {"text_config": {"model_type": "lfm2", **SHAPE, **_LFM2}},
        "lfm2_moe": EXPERTS | _LFM2 | {"use_expert_bias": True, "num_dense_layers": 1},
        "mamba": {
            "state_size": 8,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_rank": 4,
        },
        "mamba2": {
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "conv_kernel": 4,
            "n_groups": 2,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_limit": [0.001, 100.0],
            "time_step_rank": 4,
        },
        "nemotron_h": EXPERTS
        | {
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "mamba_proj_bias": False,
            "ssm_state_size": 16,
            "conv_kernel": 4,
            "n_groups": 2,
            "use_bias": False,
            "use_conv_bias": True,
            "hybrid_override_pattern": "M*-E",
            "moe_shared_expert_intermediate_size": 32,
        },
        "olmo_hybrid": _DELTA
        | {
            "layer_types": [_LINEAR, FULL],
            "linear_num_value_heads": 2,
            "linear_allow_neg_eigval": True,
        },
        "plamo2": {
            "hidden_size_per_head": 16,
            "mamba_d_state": 16,
            "mamba_num_heads": 4,
        },
        "qwen3_5": {"text_config": _QWEN35},
        "qwen3_5_moe": {
            "text_config": _QWEN35 | EXPERTS | {"model_type": "qwen3_5_moe_text"},
        },
        "qwen3_next": EXPERTS | _DELTA | {"partial_rotary_factor": 0.5},
        "recurrent_gemma": {
            "num_hidden_layers": 3,
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "attention_window_size": WINDOW,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
        "rwkv7": {
            "head_dim": 32,
            "a_low_rank_dim": 8,
            "v_low_rank_dim": 8,
            "gate_low_rank_dim": 8,
            "decay_low_rank_dim": 8,
        },
    }.items()
}
