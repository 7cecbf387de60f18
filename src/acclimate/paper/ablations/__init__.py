"""The paper's ablations, one command each: a sweep in which one thing varies.

table.py    THE table of ablations
study.py    from an ablation and data to a sweep that is ready to run
subsets.py  fewer training domains, or fewer images of each
verdict.py  what came out, with errors, in words
"""
