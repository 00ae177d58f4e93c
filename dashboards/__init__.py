"""What an on-call person and a reliability engineer look at, and the composition root of `muster up`."""
