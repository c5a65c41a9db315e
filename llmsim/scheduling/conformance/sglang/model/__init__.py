"""What SGLang loads in place of a model (SGLANG_EXTERNAL_MODEL_PACKAGE)."""
