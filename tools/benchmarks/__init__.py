"""The benchmarks behind ./bench: each prints its figures beside their goals and peers, as a table or as JSON."""
