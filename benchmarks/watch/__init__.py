"""Whether something became slower: short runs of the benchmarks beside the tables of results/."""
