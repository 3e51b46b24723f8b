"""What an eval run is made from: suites, cases, repositories, and the identity of each."""
