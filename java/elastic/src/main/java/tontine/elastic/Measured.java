package tontine.elastic;

/** A value that was measured, and its age in milliseconds. A value that is not finite is never written. */
public record Measured(double value, long ageMs) {}
