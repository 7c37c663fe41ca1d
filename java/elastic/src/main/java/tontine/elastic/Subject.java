package tontine.elastic;

/** Of whom evidence is asked: either a member by its id, or a machine by its address. The other one is null. */
public record Subject(String member, String address) {
    /** As people are told of it. */
    @Override
    public String toString() {
        return member != null ? member : address;
    }
}
