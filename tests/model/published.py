"""Published sizes of models: the figure, and who published it. Counts are parameters; bytes are
bytes.
"""

HF = "safetensors metadata on huggingface.co"
QWEN3 = "Qwen3 technical report, tables 1 and 2, and the model cards"
QWEN25 = "model card of Qwen2.5"
LLAMA = "The Llama 3 Herd of Models, and safetensors metadata on huggingface.co"
GPT_OSS = "gpt-oss model card, table 1"
DEEPSEEK = "DeepSeek-V3 technical report, section 4.2"
KIMI_LINEAR = "transformers 5.20, the model of the default config of kimi_linear"
KV_TABLE = "Insights into DeepSeek-V3 (ISCA 2025, arXiv 2505.09343), table 1"

PARAMETERS: dict[str, tuple[float, str]] = {
    "meta-llama/Llama-3.1-8B": (8_030_261_248, LLAMA),
    "meta-llama/Llama-3.1-70B-Instruct": (70_553_706_496, LLAMA),
    "meta-llama/Meta-Llama-3.1-405B": (405_853_388_800, LLAMA),
    "meta-llama/Llama-3.2-1B": (1_235_814_400, HF),
    "meta-llama/Llama-2-7b-hf": (6_738_415_616, HF),
    "Qwen/Qwen2.5-0.5B-Instruct": (494_032_768, HF),
    "Qwen/Qwen2.5-7B-Instruct": (7.61e9, QWEN25),
    "Qwen/Qwen2.5-72B-Instruct": (72.7e9, QWEN25),
    "Qwen/Qwen3-0.6B": (0.596e9, HF),
    "Qwen/Qwen3-1.7B": (1.72e9, HF),
    "Qwen/Qwen3-8B": (8.19e9, HF),
    "Qwen/Qwen3-32B": (32.8e9, QWEN3),
    "Qwen/Qwen3-32B-FP8": (32.8e9, QWEN3),
    "Qwen/Qwen3-30B-A3B": (30.5e9, QWEN3),
    "Qwen/Qwen3-30B-A3B-FP8": (30.5e9, QWEN3),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (30.5e9, QWEN3),
    "Qwen/Qwen3-235B-A22B": (235e9, QWEN3),
    "Qwen/Qwen3-235B-A22B-FP8": (235e9, QWEN3),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480e9, "model card of Qwen3-Coder"),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (80e9, "model card of Qwen3-Next"),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (46.7e9, "Mixtral of Experts, and the model card"),
    "mistralai/Mixtral-8x22B-v0.1": (140_620_634_112, HF),
    "mistralai/Mistral-7B-v0.1": (7_241_732_096, HF),
    "mistralai/Mistral-7B-Instruct-v0.3": (7_248_023_552, HF),
    "deepseek-ai/DeepSeek-V2-Lite": (15.7e9, "DeepSeek-V2 technical report, appendix B"),
    "deepseek-ai/DeepSeek-V3": (671e9, DEEPSEEK),
    "moonshotai/Kimi-K2-Instruct": (1_026_408_232_448, HF),
    "nvidia/Kimi-K2.5-NVFP4": (1_026_408_232_448, "the shapes of Kimi-K2-Instruct"),
    "nvidia/DeepSeek-R1-0528-FP4-v2": (671e9, DEEPSEEK),
    "openai/gpt-oss-20b": (20.91e9, GPT_OSS),
    "openai/gpt-oss-120b": (116.83e9, GPT_OSS),
    "google/gemma-2-9b": (9_241_705_984, HF),
    "google/gemma-2-27b": (27_227_128_320, HF),
    "google/gemma-3-1b-it": (999_885_952, HF),
    "google/gemma-4-31B-it": (30.7e9, "model card of Gemma 4"),
    "google/gemma-4-26B-A4B-it": (25.2e9, "model card of Gemma 4"),
    "XiaomiMiMo/MiMo-V2-Flash": (309e9, "model card of MiMo-V2-Flash"),
    "stepfun-ai/Step-3.5-Flash": (196.81e9, "model card of Step 3.5 Flash"),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": (49_133_074_464, KIMI_LINEAR),
    "LiquidAI/LFM2-1.2B": (1_170_340_608, "model card of LFM2-1.2B"),
    "LiquidAI/LFM2-8B-A1B": (8.3e9, "LFM2 technical report"),
    "deepseek-ai/DeepSeek-V4-Flash": (284e9, "model card of DeepSeek-V4"),
    "deepseek-ai/DeepSeek-V4-Pro": (1.57e12, "model card of DeepSeek-V4"),
    "moonshotai/Kimi-K3": (2_779_484_476_000, "vLLM 0.33's modules of kimi_k3, by their widths"),
    "MiniMaxAI/MiniMax-M3": (426_174_572_928, "modules of transformers 5.20's minimax_m3_vl"),
    "state-spaces/mamba-2.8b-hf": (2_768_345_600, HF),
    "tiiuae/falcon-mamba-7b": (7_272_665_088, HF),
    "mistralai/Mamba-Codestral-7B-v0.1": (7_285_403_648, HF),
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": (49_867_145_216, HF),
    "allenai/OLMo-7B-hf": (6_888_095_744, HF),
    "bigscience/bloom": (176_247_271_424, HF),
    "mosaicml/mpt-7b": (6_649_286_656, HF),
    "databricks/dbrx-instruct": (131_596_523_520, HF),
    "meituan-longcat/LongCat-Flash-Chat": (560e9, "LongCat-Flash technical report"),
    "bigcode/starcoder2-7b": (7_173_923_840, HF),
    "stepfun-ai/Step3-316B": (316e9, "model card of stepfun-ai/Step3"),
    "meta-llama/Meta-Llama-3-8B": (8_030_261_248, HF),
    "meta-llama/Meta-Llama-3-70B": (70_553_706_496, HF),
    "meta-llama/Llama-3.2-3B": (3_212_749_824, HF),
    "meta-llama/Llama-2-13b-hf": (13_015_864_320, HF),
    "meta-llama/Llama-2-70b-hf": (68_976_648_192, HF),
    "Qwen/Qwen2.5-1.5B-Instruct": (1_543_714_304, HF),
    "Qwen/Qwen2.5-3B-Instruct": (3_085_938_688, HF),
    "Qwen/Qwen2.5-14B-Instruct": (14_770_033_664, HF),
    "Qwen/Qwen2.5-32B-Instruct": (32_763_876_352, HF),
    "Qwen/Qwen3-4B": (4_022_468_096, HF),
    "Qwen/Qwen3-14B": (14_768_307_200, HF),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": (235e9, QWEN3),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (30.5e9, "its text part is Qwen3-30B-A3B's"),
    "mistralai/Mistral-7B-Instruct-v0.2": (7_241_732_096, HF),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": (140_630_071_296, HF),
    "mistralai/Mistral-Small-24B-Instruct-2501": (23_572_403_200, HF),
    "microsoft/phi-4": (14_659_507_200, HF),
    "microsoft/Phi-3-mini-4k-instruct": (3_821_079_552, HF),
    "microsoft/Phi-mini-MoE-instruct": (7.65e9, "model card: 7.6B; by hand in test_hf_config"),
    "google/gemma-2-2b": (2_614_341_888, HF),
    "deepseek-ai/DeepSeek-V2": (235_741_434_880, HF),
    "moonshotai/Moonlight-16B-A3B": (15_960_111_936, HF),
    "baidu/ERNIE-4.5-21B-A3B-PT": (21.83e9, HF),
    "baidu/ERNIE-4.5-300B-A47B-PT": (300e9, "ERNIE 4.5 technical report, table 1"),
    "allenai/OLMo-2-1124-7B": (7_298_617_344, HF),
    "ibm-granite/granite-3.1-8b-instruct": (8_170_848_256, HF),
    "MiniMaxAI/MiniMax-M2.5": (229e9, "model card"),
    "deepseek-ai/DeepSeek-V3.2": (
        671.9e9,
        "safetensors metadata less one layer: test_sparse.py",
    ),
    "zai-org/GLM-5": (744e9, "model card"),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31_577_940_288, HF),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8": (
        31_577_940_288,
        "the shapes of NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    ),
    "ibm-granite/granite-4.0-h-small": (32.2e9, "model card"),
    "tiiuae/Falcon-H1-7B-Base": (7.59e9, "model card"),
}

WHOLE_WITH_VISION: dict[str, tuple[float, str]] = {
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (108_641_793_536, HF),
    "google/gemma-3-27b-it": (27_432_406_640, HF),
}
"""Published with the vision tower, which is not simulated."""

WITH_MORE: dict[str, str] = {
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "vision, as Scout; text 400.7B",
    "zai-org/GLM-4.5": "a prediction layer: test_more_families",
    "zai-org/GLM-4.5-Air": "a prediction layer: test_more_families",
    "Qwen/Qwen3.5-27B": "vision; its card gives no count of the text part",
    "Qwen/Qwen3.5-35B-A3B": "vision; its card gives no count of the text part",
}
"""Presets whose published counts hold more than what is simulated, and where they are compared."""

WEIGHT_GIB: dict[str, tuple[float, str]] = {
    "meta-llama/Llama-3.1-8B": (
        14.957,
        "vLLM's log of loading it, pull request 17122, less its 0.2 % alignment",
    ),
    "openai/gpt-oss-20b": (12.8, GPT_OSS),
    "openai/gpt-oss-120b": (60.8, GPT_OSS),
    "nvidia/Kimi-K2.5-NVFP4": (
        595e9 / 2**30,
        "model card of ISTA-DASLab/Kimi-K2.5-P48-NVFP4-W4A4-Preview: 595 GB, with the same parts "
        "in NVFP4 and a vision tower",
    ),
}

KV_BYTES_PER_TOKEN: dict[str, tuple[int, str]] = {
    "deepseek-ai/DeepSeek-V3": (70_272, KV_TABLE),
    "Qwen/Qwen2.5-72B-Instruct": (327_680, KV_TABLE),
    "meta-llama/Llama-3.1-405B": (516_096, KV_TABLE),
}
