"""Configs of models whose keys and values are kept in a small common space."""

from support.zoo.shapes import EXPERTS, LATENT, SHAPE, YARN, Config

_V3: Config = {"model_type": "deepseek_v3", **SHAPE, **EXPERTS, **LATENT}
# Of all tokens the 12 that an index of its own names are attended to.
_INDEX: Config = {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 12}
_MINIMAX: Config = {
    **SHAPE,
    **EXPERTS,
    "dense_intermediate_size": 96,
    "shared_intermediate_size": 32,
    "rotary_dim": 8,
    "num_hidden_layers": 3,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["full_attention", "sparse", "sparse"],
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_block_size": 4,
    "index_topk_blocks": 2,  # so that a short text is attended to as a whole
}
_LONGCAT: Config = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "zero_expert_num": 1,
    "ffn_hidden_size": 96,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 32,
    "num_layers": 2,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}

CONFIGS: dict[str, Config] = {
    name: {"model_type": name.partition(" ")[0], **SHAPE, **EXPERTS, **LATENT, **own}
    for name, own in {
        "deepseek_v2": {"topk_method": "greedy", "rope_scaling": YARN},
        "deepseek_v3": {},
        "deepseek_v3 yarn": {"rope_scaling": YARN},
        "deepseek_v32": _INDEX,
        "glm4_moe_lite": {},
        "glm_moe_dsa": _INDEX
        | {
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "kimi_k25": {"text_config": _V3},
        "kimi_vl": {"text_config": _V3},
        "longcat_flash": _LONGCAT,
        "longcat_flash_ngram": _LONGCAT
        | {"ngram_vocab_size_ratio": 3, "emb_neighbor_num": 3, "emb_split_num": 2},
        "minicpm3": {
            "dim_model_base": 32,
            "scale_depth": 1.4,
            "scale_emb": 3.0,
            "rope_scaling": {
                "original_max_position_embeddings": 32,
                "short_factor": [1.0] * 4,
                "long_factor": [1.5, 1.75, 2.0, 2.25],
            },
        },
        "mistral4": {"rope_parameters": YARN},
        "youtu_llm": {},
        "minimax_m3_vl": {"text_config": _MINIMAX},
        "minimax_m3_vl wide": {"text_config": _MINIMAX | {"index_block_size": 8}},
        "deepseek_v41": {
            "num_hidden_layers": 4,
            "o_groups": 2,
            "o_lora_rank": 16,
            "rms_norm_eps": 1e-6,
            "sliding_window": 8,
            "compress_ratios": [0, 4, 4, 4],
            "kv_source_layer_ids": [1],
            "index_source_layer_ids": [1, 3],
            "candidate_source_layer_id": 1,
            "candidate_topk_blocks": 2,
            "candidate_block_size": 2,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 4,
            "rope_scaling": YARN,
            **_INDEX,
            "index_topk": 4,
        },
    }.items()
}
