"""What a layer computes: the definitions, written with the library's ops, and their native calls."""
