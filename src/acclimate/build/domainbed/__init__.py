"""The five image benchmarks of DomainBed, from their folders."""
