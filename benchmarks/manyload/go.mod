module duemq.benchmarks/manyload

go 1.23
