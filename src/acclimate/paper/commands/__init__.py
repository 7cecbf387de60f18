"""The paper's commands: `ablate`, `reproduce` and `theory`."""
