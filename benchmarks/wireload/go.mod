module duemq.benchmarks/wireload

go 1.22
