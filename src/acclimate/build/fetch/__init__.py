"""The images that a manifest names, from where they lie."""
