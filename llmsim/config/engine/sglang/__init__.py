"""Engine options that SGLang alone has: its defaults, drafts and hierarchical cache."""
