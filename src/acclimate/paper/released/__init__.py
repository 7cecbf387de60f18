"""The authors' released Geo-YFCC table, read without running the pickle it is in."""
