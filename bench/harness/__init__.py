"""What compare.py and regression.py share; the case parser, statistics, reference and reports need
nothing but Python."""
