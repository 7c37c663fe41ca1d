package tontine.elastic;

/** Why a call failed: a code of the contract, and a sentence that says what failed, why, and what helps. */
public final class Failure extends Exception {
    private static final long serialVersionUID = 1L;

    /** The line is no JSON. */
    public static final int NO_JSON = -32_700;
    /** It is JSON, and no request. */
    public static final int NO_REQUEST = -32_600;
    /** There is no such method. */
    public static final int NO_METHOD = -32_601;
    /** The parameters are missing, or of another form. */
    public static final int PARAMS = -32_602;
    /** It may pass by itself. */
    public static final int PASSING = -32_000;
    /** Refused for good: the same call will be refused again. */
    public static final int REFUSED = -32_001;
    /** Credentials are missing, wrong or expired. */
    public static final int CREDENTIALS = -32_002;

    private final int code;

    private Failure(int code, String message) {
        super(message);
        this.code = code;
    }

    /** A failure of the conversation itself, with one of the codes above. */
    static Failure of(int code, String message) {
        return new Failure(code, message);
    }

    /** It may pass by itself, so the call is worth repeating. */
    public static Failure passing(String message) {
        return new Failure(PASSING, message);
    }

    /** The same call will be refused again. */
    public static Failure refused(String message) {
        return new Failure(REFUSED, message);
    }

    /** The parameters are not what the method takes. */
    public static Failure params(String message) {
        return new Failure(PARAMS, message);
    }

    /** The engine rejected the credentials, or none were given and it wants some. */
    public static Failure credentials(String message) {
        return new Failure(CREDENTIALS, message);
    }

    /** The code, as it is on the wire. */
    public int code() {
        return code;
    }
}
