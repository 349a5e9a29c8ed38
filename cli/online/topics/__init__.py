"""Commands about topics of a live broker: lite topics, queues and the busiest topics."""
