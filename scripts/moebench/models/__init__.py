"""What the table of models and a checkpoint's config.json say of a model's MoE layer."""
