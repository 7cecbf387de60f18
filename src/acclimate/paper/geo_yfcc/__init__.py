"""Geography: rows of YFCC100M, tags, labels, countries and the stages that make domains of them."""
