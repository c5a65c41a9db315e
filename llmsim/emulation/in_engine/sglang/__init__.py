"""What runs in SGLang's own processes."""
