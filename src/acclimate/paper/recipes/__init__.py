"""The paper's tables and figures, one recipe each.

table.py     THE table of recipes
data_sets.py what they need below a folder, and what stands in for it under `--small`
plan.py      from a recipe and data to sweeps that are ready to run
"""
