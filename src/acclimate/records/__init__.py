"""What runs write down and others read; without torch."""
