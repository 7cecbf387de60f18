"""`python -m acclimate`, which is also what torchrun starts."""

from acclimate.cli import main

main()
