"""Reads C++ names as compilers mangle them (Itanium ABI): the grammar's types, expressions and names."""
