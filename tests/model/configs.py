"""Configs of families without a bundled preset, as their authors wrote them, with the published counts."""

from typing import Any

HF = "safetensors metadata on huggingface.co"
Config = dict[str, Any]


def shape(layers: int, hidden: int, width: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> Config:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab, "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, **more,
    }  # fmt: skip


def mamba(heads: int, head_dim: int, groups: int, state: int) -> Config:
    return {"mamba_n_heads": heads, "mamba_d_head": head_dim, "mamba_n_groups": groups, "mamba_d_state": state}


def nemotron(pattern: str, heads: int, head_dim: int, state: int) -> Config:
    return {
        "model_type": "nemotron_h", "hybrid_override_pattern": pattern, "mamba_num_heads": heads, "head_dim": 128,
        "mamba_head_dim": head_dim, "n_groups": 8, "ssm_state_size": state,
    }  # fmt: skip


NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
SUPER = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
NANO_9B = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
GRANITE_4 = (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4

SPARSE: Config = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "intermediate_size": 18432,
    "vocab_size": 129280, "max_position_embeddings": 163840, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "model_type": "deepseek_v32", "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip
"""DeepSeek-V3.2."""

PUBLISHED: dict[str, tuple[float, str, Config]] = {
    "GLM-5": (
        744e9, "model card",
        SPARSE | {
            "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "num_attention_heads": 64, "hidden_size": 6144,
            "intermediate_size": 12288, "vocab_size": 154880, "max_position_embeddings": 202752, "q_lora_rank": 2048,
            "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32, "n_group": 1, "topk_group": 1,
        },
    ),
    "Nemotron-3-Nano-30B-A3B": (
        31_577_940_288, HF,
        shape(52, 2688, 1856, 32, 2, 131072, **nemotron(NANO, 64, 64, 128), n_routed_experts=128,
              num_experts_per_tok=6, moe_intermediate_size=1856, n_shared_experts=1,
              moe_shared_expert_intermediate_size=3712, moe_latent_size=None),
    ),
    "Nemotron-3-Super-120B-A12B": (
        120.6e9, "Nemotron 3 Super technical report: 120.6B",
        shape(88, 4096, 2688, 32, 2, 131072, **nemotron(SUPER, 128, 64, 128), n_routed_experts=512,
              num_experts_per_tok=22, moe_intermediate_size=2688, n_shared_experts=1,
              moe_shared_expert_intermediate_size=5376, moe_latent_size=1024),
    ),
    "Nemotron-Nano-9B-v2": (
        8.89e9, "model card", shape(56, 4480, 15680, 40, 8, 131072, **nemotron(NANO_9B, 128, 80, 128)),
    ),
    "Bamba-9B": (
        9.78e9, "model card",
        shape(32, 4096, 14336, 32, 8, 128256, model_type="bamba", attn_layer_indices=[9, 18, 27],
              **mamba(128, 64, 1, 128)),
    ),
    "granite-4.0-h-small": (
        32.2e9, "model card",
        shape(40, 4096, 768, 32, 8, 100352, model_type="granitemoehybrid", layer_types=GRANITE_4,
              num_local_experts=72, num_experts_per_tok=10, shared_intermediate_size=1536,
              position_embedding_type="nope", tie_word_embeddings=True, **mamba(128, 64, 1, 128)),
    ),
    "granite-4.0-h-micro": (
        3.19e9, "model card",
        shape(40, 2048, 8192, 32, 8, 100352, model_type="granitemoehybrid", layer_types=GRANITE_4,
              num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=8192,
              position_embedding_type="nope", tie_word_embeddings=True, **mamba(64, 64, 1, 128)),
    ),
    "Falcon-H1-7B": (
        7.59e9, "model card",
        shape(44, 3072, 12288, 12, 2, 130048, model_type="falcon_h1", head_dim=128, mamba_rms_norm=False,
              **mamba(24, 128, 1, 256)),
    ),
    "Falcon-H1-0.5B": (
        521_411_104, HF,
        shape(36, 1024, 2048, 8, 2, 32784, model_type="falcon_h1", head_dim=64, mamba_rms_norm=False,
              **mamba(24, 64, 1, 128)),
    ),
    "GLM-4-9B-0414": (9_400_279_040, HF, shape(40, 4096, 13696, 32, 2, 151552, model_type="glm4", head_dim=128)),
    "granite-3.1-8b": (
        8_170_848_256, HF,
        shape(40, 4096, 12800, 32, 8, 49155, model_type="granite", tie_word_embeddings=True, logits_scaling=16.0),
    ),
    "granite-3.1-3b-a800m": (
        3.3e9, "model card",
        shape(32, 1536, 512, 24, 8, 49155, model_type="granitemoe", tie_word_embeddings=True, num_local_experts=40,
              num_experts_per_tok=8),
    ),
    "OLMoE-1B-7B": (
        6_919_161_856, HF,
        shape(16, 2048, 1024, 16, 16, 50304, model_type="olmoe", num_experts=64, num_experts_per_tok=8),
    ),
    "SmolLM3-3B": (
        3_075_098_624, HF,
        shape(36, 2048, 11008, 16, 4, 128256, model_type="smollm3", tie_word_embeddings=True, sliding_window=None,
              use_sliding_window=False),
    ),
    "Seed-OSS-36B": (
        36_151_104_512, HF,
        shape(64, 5120, 27648, 80, 8, 155136, model_type="seed_oss", head_dim=128, attention_bias=True,
              attention_out_bias=False),
    ),
    "Nemotron-4-15B": (
        15.6e9, "Nemotron-4 15B technical report, table 1",
        shape(32, 6144, 24576, 48, 8, 256000, model_type="nemotron", hidden_act="relu2"),
    ),
    "Falcon-7B": (
        6_921_720_704, "transformers' count of the loaded model",
        shape(32, 4544, 0, 71, 71, 65024, model_type="falcon", multi_query=True, parallel_attn=True, bias=False,
              new_decoder_architecture=False, alibi=False, tie_word_embeddings=None),
    ),
    "Falcon-40B": (
        41_303_293_952, "transformers' count of the loaded model",
        shape(60, 8192, 0, 128, 128, 65024, model_type="falcon", num_kv_heads=8, new_decoder_architecture=True,
              parallel_attn=True, bias=False, alibi=False, tie_word_embeddings=None),
    ),
    "c4ai-command-r-v01": (
        34_980_831_232, HF,
        shape(40, 8192, 22528, 64, 64, 256000, model_type="cohere", use_qk_norm=False, logit_scale=0.0625,
              tie_word_embeddings=None),
    ),
    "c4ai-command-r-plus": (
        103_810_674_688, HF,
        shape(64, 12288, 33792, 96, 8, 256000, model_type="cohere", use_qk_norm=True, tie_word_embeddings=None),
    ),
    "c4ai-command-r7b": (
        8_027_901_952, HF,
        shape(32, 4096, 14336, 32, 8, 256000, model_type="cohere2", head_dim=128, sliding_window=4096, layer_switch=4,
              tie_word_embeddings=None),
    ),
    "gpt2-xl": (
        1_557_611_200, HF,
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
    ),
    "opt-6.7b": (
        6_658_473_984, "transformers' count of the loaded model",
        {"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 4096, "ffn_dim": 16384,
         "word_embed_proj_dim": 4096, "num_attention_heads": 32, "max_position_embeddings": 2048,
         "vocab_size": 50272, "do_layer_norm_before": True},
    ),
    "pythia-6.9b": (
        6_857_302_016, "Pythia (arXiv 2304.01373), table 1: 6.9B",
        shape(32, 4096, 16384, 32, 32, 50432, model_type="gpt_neox", use_parallel_residual=True),
    ),
    "phi-2": (
        2_779_683_840, HF,
        shape(32, 2560, 10240, 32, 32, 51200, model_type="phi", qk_layernorm=False, partial_rotary_factor=0.4),
    ),
    "gemma-7b": (
        8_537_680_896, HF,
        shape(28, 3072, 24576, 16, 16, 256000, model_type="gemma", head_dim=256, tie_word_embeddings=None),
    ),
    "starcoder": (
        15_517_456_384, HF,
        {"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48, "n_positions": 8192,
         "n_inner": 24576, "vocab_size": 49152, "multi_query": True},
    ),
    "stablelm-3b-4e1t": (2_795_443_200, HF, shape(32, 2560, 6912, 32, 32, 50304, model_type="stablelm")),
    "internlm2_5-7b": (7_737_708_544, HF, shape(32, 4096, 14336, 32, 8, 92544, model_type="internlm2", bias=False)),
    "Baichuan2-7B": (
        7_505_973_248, HF, shape(32, 4096, 11008, 32, 32, 125696, model_type="baichuan", model_max_length=4096),
    ),
    "Hunyuan-A13B": (
        80_393_183_232, HF,
        shape(32, 4096, 3072, 32, 8, 128167, model_type="hunyuan_v1_moe", attention_head_dim=128, use_qk_norm=True,
              num_experts=64, moe_topk=[8] * 32, moe_intermediate_size=[3072] * 32, num_shared_expert=[1] * 32,
              use_cla=False, tie_word_embeddings=True),
    ),
    "ERNIE-4.5-0.3B": (
        360_748_032, HF,
        shape(18, 1024, 3072, 16, 2, 103424, model_type="ernie4_5", head_dim=128, use_bias=False,
              tie_word_embeddings=True),
    ),
    "ERNIE-4.5-21B-A3B": (
        21.83e9, HF,
        shape(28, 2560, 12288, 20, 4, 103424, model_type="ernie4_5_moe", use_bias=False, moe_num_experts=64, moe_k=6,
              moe_intermediate_size=1536, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1,
              moe_layer_end_index=-1, tie_word_embeddings=True),
    ),
    "ERNIE-4.5-300B-A47B": (
        300e9, "ERNIE 4.5 technical report, table 1",
        shape(54, 8192, 28672, 64, 8, 103424, model_type="ernie4_5_moe", use_bias=False, moe_num_experts=64, moe_k=8,
              moe_intermediate_size=3584, moe_num_shared_experts=0, moe_layer_start_index=3, moe_layer_interval=1),
    ),
    "MiniMax-M1-80k": (
        456e9, "MiniMax-M1 (arXiv 2506.13585)",
        shape(80, 6144, 9216, 64, 8, 200064, model_type="minimax_m1", head_dim=128, num_local_experts=32,
              num_experts_per_tok=2, shared_intermediate_size=0, attn_type_list=([0] * 7 + [1]) * 10),
    ),
    "dots.llm1": (
        142.8e9, HF,
        shape(62, 4096, 10944, 32, 32, 152064, model_type="dots1", head_dim=128, n_routed_experts=128,
              num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1),
    ),
    "deepseek-moe-16b": (
        16_375_728_128, HF,
        shape(28, 2048, 10944, 16, 16, 102400, model_type="deepseek", n_routed_experts=64, num_experts_per_tok=6,
              moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1, moe_layer_freq=1),
    ),
    "EXAONE-4.0-32B": (
        32.0e9, "model card",
        shape(64, 5120, 27392, 40, 8, 102400, model_type="exaone4", head_dim=128, sliding_window=4096,
              layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 16, max_position_embeddings=131072),
    ),
    "Qwen2.5-VL-7B": (  # 8,292,166,656 with the vision tower
        7_615_616_512, "safetensors metadata of Qwen2.5-7B, whose text part it has",
        shape(28, 3584, 18944, 28, 4, 152064, model_type="qwen2_5_vl", vision_config={"depth": 32},
              use_sliding_window=False, sliding_window=32768, max_window_layers=28),
    ),
    "Olmo-3-7B": (
        7.3e9, "model card",
        shape(32, 4096, 11008, 32, 32, 100278, model_type="olmo3", sliding_window=4096),
    ),
    "OLMo-2-1124-7B": (7_298_617_344, HF, shape(32, 4096, 11008, 32, 32, 100352, model_type="olmo2")),
    "Phi-3-mini-4k": (
        3_821_079_552, HF, shape(32, 3072, 8192, 32, 32, 32064, model_type="phi3", sliding_window=2047),
    ),
    "phi-4": (14_659_507_200, HF, shape(40, 5120, 17920, 40, 10, 100352, model_type="phi3", sliding_window=None)),
    "Phi-4-mini": (
        3_836_021_760, HF,
        shape(32, 3072, 8192, 24, 8, 200064, model_type="phi3", sliding_window=262144, tie_word_embeddings=True),
    ),
    "Phi-3.5-MoE": (
        41_873_153_344, HF,
        shape(32, 4096, 6400, 32, 8, 32064, model_type="phimoe", num_local_experts=16, num_experts_per_tok=2,
              attention_bias=True, lm_head_bias=True, sliding_window=131072),
    ),
    "Llama-3.2-3B": (
        3_212_749_824, HF,
        shape(28, 3072, 8192, 24, 8, 128256, model_type="llama", head_dim=128, tie_word_embeddings=True),
    ),
    "Llama-2-70b": (68_976_648_192, HF, shape(80, 8192, 28672, 64, 8, 32000, model_type="llama")),
    "Mistral-Nemo-12B": (
        12_247_782_400, HF, shape(40, 5120, 14336, 32, 8, 131072, model_type="mistral", head_dim=128),
    ),
    "Mistral-Small-24B": (
        23_572_403_200, HF, shape(40, 5120, 32768, 32, 8, 131072, model_type="mistral", head_dim=128),
    ),
    "Mistral-Large-2407": (
        122_610_069_504, HF, shape(88, 12288, 28672, 96, 8, 32768, model_type="mistral", head_dim=128),
    ),
    "Qwen2.5-32B": (32_763_876_352, HF, shape(64, 5120, 27648, 40, 8, 152064, model_type="qwen2")),
    "Qwen2-57B-A14B": (
        57.41e9, HF,
        shape(28, 3584, 18944, 28, 4, 151936, model_type="qwen2_moe", num_experts=64, num_experts_per_tok=8,
              moe_intermediate_size=2560, shared_expert_intermediate_size=20480),
    ),
    "Qwen3-4B": (
        4_022_468_096, HF,
        shape(36, 2560, 9728, 32, 8, 151936, model_type="qwen3", head_dim=128, tie_word_embeddings=True),
    ),
    "Qwen3-14B": (14_768_307_200, HF, shape(40, 5120, 17408, 40, 8, 151936, model_type="qwen3", head_dim=128)),
    "gemma-2-2b": (
        2_614_341_888, HF,
        shape(26, 2304, 9216, 8, 4, 256000, model_type="gemma2", head_dim=256, tie_word_embeddings=None),
    ),
    "starcoder2-15b": (
        15_957_889_024, HF,
        shape(40, 6144, 24576, 48, 4, 49152, model_type="starcoder2", use_bias=True, sliding_window=4096,
              tie_word_embeddings=False),
    ),
    "Moonlight-16B-A3B": (
        15_960_111_936, HF,
        shape(27, 2048, 11264, 16, 16, 163840, model_type="deepseek_v3", kv_lora_rank=512, q_lora_rank=None,
              qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6,
              n_shared_experts=2, moe_intermediate_size=1408, first_k_dense_replace=1),
    ),
    "DeepSeek-V2": (
        235_741_434_880, HF,
        shape(60, 5120, 12288, 128, 128, 102400, model_type="deepseek_v2", kv_lora_rank=512, q_lora_rank=1536,
              qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=160, num_experts_per_tok=6,
              n_shared_experts=2, moe_intermediate_size=1536, first_k_dense_replace=1),
    ),
}  # fmt: skip

MTP: dict[str, tuple[int, Config]] = {
    "GLM-4.5": (
        358_337_776_896,
        shape(92, 5120, 12288, 96, 8, 151552, model_type="glm4_moe", head_dim=128, attention_bias=True,
              use_qk_norm=True, n_routed_experts=160, num_experts_per_tok=8, n_shared_experts=1,
              moe_intermediate_size=1536, first_k_dense_replace=3),
    ),
    "GLM-4.5-Air": (
        110_468_824_832,
        shape(46, 4096, 10944, 96, 8, 151552, model_type="glm4_moe", head_dim=128, attention_bias=True,
              use_qk_norm=False, n_routed_experts=128, num_experts_per_tok=8, n_shared_experts=1,
              moe_intermediate_size=1408, first_k_dense_replace=1),
    ),
}  # fmt: skip
"""Published (safetensors metadata) with the multi-token prediction layer, which is not counted here."""
