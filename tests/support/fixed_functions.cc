#include "tests/support/fixed_functions.h"

namespace regard::test {
namespace {

const char* const kFunctionCases[] = {
    // Each real operator.
    "b2 hq2 sq33 skv65 d16 score=score*0.7+1.5 lse",
    "b2 hq2 sq33 skv65 d16 score=0.25-score lse",
    "b2 hq2 sq33 skv65 d16 score=-score/3.0 lse",
    "b2 hq2 sq33 skv65 d16 score=1.0/(abs(score)+0.5) lse",
    "b2 hq2 sq33 skv65 d16 score=min(score,0.25)+max(score,-0.5) lse",
    "b2 hq2 sq33 skv65 d16 score=exp(min(score,2.0)) lse",
    "b2 hq2 sq33 skv65 d16 score=log(score*score+0.5) lse",
    "b2 hq2 sq33 skv65 d16 score=sqrt(score*score+0.25) lse",
    "b2 hq2 sq33 skv65 d16 score=3.0*tanh(score) lse",
    "b2 hq2 sq33 skv65 d16 score=5.0*sigmoid(score)-score lse",
    "b2 hq2 sq33 skv65 d16 score=where(score<0.0,0.5*score,score) lse",
    "b2 hq2 sq33 skv65 d16 score=where(score>=0.25&score<=1.0|score!=score,score,-0.5) lse",
    // Arguments of exp, log, sqrt and sigmoid far from 1.
    "b1 hq2 sq33 skv65 d16 score=exp(-abs(score)*40.0)+0.001*exp(min(score*8.0,10.0)) lse",
    "b1 hq2 sq33 skv65 d16 score=log(abs(score)*1e-30)*0.1+log(abs(score)*1e30)*0.2 lse",
    "b1 hq2 sq33 skv65 d16 score=sqrt(abs(score)*1e20)*1e-10+sigmoid(score*30.0) lse",
    "b1 hq2 sq33 skv65 d16 score=tanh(score*1e-3)*1e3+tanh(score*100.0) lse",
    // Each int operator, negative operands and zero divisors included.
    "b2 hq2 sq33 skv65 d16 score=score+0.1*((q_idx-kv_idx)//5) lse",
    "b2 hq2 sq33 skv65 d16 score=score+0.1*((q_idx-kv_idx)%7) lse",
    "b2 hq2 sq33 skv65 d16 score=score+0.1*((q_idx-kv_idx)//-5-(q_idx-kv_idx)%-7) lse",
    "b2 hq2 sq33 skv65 d16 score=score+0.1*(20//(q_idx-kv_idx)+20%(kv_idx-q_idx)) lse",
    "b2 hq2 sq33 skv65 d16 score=score+0.02*min(q_idx,kv_idx)-0.03*max(q_idx*2,kv_idx) lse",
    "b2 hq2 sq33 skv65 d16 score=score-0.05*abs(-q_idx+kv_idx*2) lse",
    "b2 hq2 sq33 skv65 d16 score=score+int(score*0.0+2.75)*0.1*(kv_idx%2) lse",
    "b2 hq2 sq33 skv65 d16 score=score+0.25*((kv_idx*1664525+1013904223)//65536%5) lse",
    "b2 hq2 sq33 skv65 d16 score=score+where(kv_idx*kv_idx*kv_idx*1000003<0,0.5,-0.5) lse",
    "b2 hq2 sq33 skv65 d16 score=score+where(q_idx>kv_idx,2,kv_idx%3)*0.25 lse",
    "b2 hq2 sq33 skv65 d16 score=(q_idx-kv_idx)%5 lse",
    "b2 hq2 sq33 skv65 d16 score=score*2147483647/2147483648.0 lse",
    // Every variable, and the ranks that values have: of nothing, a query, a key, both.
    "b3 hq4 hkv2 sq33 skv65 d16 score=score*(1.0+0.25*b)-0.125*h*kv_idx/16.0 lse",
    "b6 hq2 sq33 skv65 d16 diag=br score=score+0.05*(q_pos-kv_idx)+q_len*0.01-kv_len*0.02 lens lse",
    "b2 hq2 sq33 skv65 d16 diag=7 score=score-0.1*abs(q_pos-kv_idx) lse",
    "b3 hq2 sq33 skv65 d16 diag=seq score=score-0.1*abs(q_pos-kv_idx) mask=q_pos-kv_idx!=3 lse",
    "b2 hq2 sq33 skv65 d16 score=score*exp(0.5)+tanh(2.0)+sqrt(exp(q_idx*0.02))*(kv_idx//3) lse",
    "b1 hq1 sq33 skv65 d16 score=score-score lse",
    "b1 hq1 sq33 skv65 d16 score=1.5 mask=true lse",
    "b1 hq1 sq33 skv65 d16 mask=q_idx<0 lse",
    // Captured tensors: every rank, indices of indices, all eight.
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[h] lse seed=1",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score*r1[kv_idx]+r2[q_idx] lse seed=2",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[h,q_idx-kv_idx+64] lse seed=3",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[b,h,kv_idx] lse seed=4",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[b,h,q_idx,kv_idx] lse poison seed=5",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[i1[kv_idx],i2[b,q_idx]] lse seed=6",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[i1[i2[kv_idx//9]]]*(i3[q_idx%4]-i3[kv_idx%4]) lse "
    "seed=7",
    "b2 hq4 hkv2 sq33 skv65 d16 "
    "score=score+r0[h]+r1[h]+r2[b]+r3[b]+r4[kv_idx]+r5[q_idx]+r6[0]+i7[h]*0.1 lse seed=8",
    "b2 hq2 sq33 skv65 d16 score=score+r0[kv_idx]*r0[q_idx]*r0[abs(q_idx-kv_idx)] lse seed=9",
    "b2 hq2 sq33 skv65 d16 score=where(r0[kv_idx]<r0[q_idx],score,score*0.5) mask=r0[kv_idx]<1.0 "
    "lse seed=10",
    // Masks that are no built-in feature.
    "b2 hq2 sq65 skv127 d16 mask=kv_idx<17|q_idx>=kv_idx&q_idx%2==0 lse poison seed=1",
    "b2 hq2 sq65 skv127 d16 mask=i0[b,q_idx]==i0[b,kv_idx] lse poison seed=2",
    "b2 hq2 sq65 skv127 d16 causal diag=br mask=i0[b,q_idx]==i0[b,kv_idx] lse poison seed=3",
    "b2 hq2 sq65 skv127 d16 diag=br mask=(q_pos-kv_idx)%3==0&kv_idx<=q_pos lse poison seed=4",
    "b2 hq4 hkv2 sq65 skv127 d16 mask=(q_idx+kv_idx+h)%(b+2)!=0 lse poison seed=5",
    "b2 hq2 sq65 skv127 d16 mask=!(q_idx==kv_idx)&where(h==0,kv_idx>3,kv_idx<90) lse poison seed=6",
    "b2 hq2 sq65 skv127 d16 mask=kv_idx//32==q_idx//16 lse poison seed=7",
    "b6 hq2 sq65 skv127 d16 mask=kv_idx<kv_len-q_len lens lse poison seed=8",
    "b2 hq2 sq65 skv127 d16 mask=kv_idx!=5 mask=B,1,1,Skv segments bias window=40,9 diag=br lse "
    "poison seed=9",
    "b2 hq2 sq65 skv127 d16 mask=kv_idx<17|q_idx>=kv_idx block_mask=16,32 lse poison seed=10",
    "b2 hq4 sq65 skv127 d16 mask=(q_idx+h)//40==kv_idx//40 block_mask=8,8 lse poison seed=11",
    "b3 hq2 sq65 skv127 d16 mask=i0[b,q_idx]==i0[b,kv_idx] block_mask=64,128 lens lse poison "
    "seed=12",
    "b2 hq2 sq9 skv30 d16 mask=(q_idx*kv_idx)%4!=2 block_mask=1,1 lse poison seed=13",
    // Forms that are recognised.
    "b2 hq2 sq65 skv65 d16 mask=kv_idx<=q_idx lse poison seed=1",
    "b2 hq2 sq65 skv127 d16 diag=br "
    "score=where(q_pos>=kv_idx&q_pos-kv_idx<30,20.0*tanh(score/20.0),-inf) lse poison seed=2",
    "b2 hq2 sq65 skv127 d16 diag=br score=score-0.0625*abs(q_pos-kv_idx) mask=kv_idx<=q_pos lse "
    "poison seed=3",
    // -inf of arithmetic, of data and of a score.
    "b2 hq2 sq33 skv65 d16 score=score+r0[kv_idx] lse seed=14",
    "b2 hq2 sq33 skv65 d16 score=where(score<0.3,score,-inf) sinks lse",
    "b2 hq2 sq33 skv65 d16 score=score+where(kv_idx%4==1,-inf,0.0) dropout=0.25 lse",
    // With every other edit, and functions of the host language.
    "b2 hq4 hkv2 sq33 skv65 d16 softcap=4 score=score*1.25+r0[h,kv_idx] bias alibi diag=br sinks "
    "lse seed=3",
    "b2 hq4 hkv2 sq33 skv65 d16 softcap=4 causal diag=br score=tanh(score)*2.0 mask segments "
    "dropout=0.5 lse poison seed=4",
    "b2 hq4 hkv2 sq33 skv65 d16 scale=-0.4 score=abs(score) lse",
    "b2 hq4 hkv2 sq33 skv65 d16 scale=0 score=score+0.1*kv_idx lse",
    "b2 hq4 hkv2 sq33 skv65 d16 callback lse",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score*0.5 callback mask=kv_idx%7!=3 softcap=3 bias lse "
    "seed=5",
    "b2 hq2 sq17 skv33 d16 score=score*score*0.1 scores=edited bias mask=kv_idx!=3 poison seed=6",
    "b2 hq2 sq17 skv33 d16 score=score*score*0.1 scores=scaled causal diag=br poison seed=7",
    "b2 hq2 sq17 skv33 d16 score=score+r0[kv_idx] scores=probs dropout=0.25 seed=8",
    // Decode rows, few queries, many keys.
    "b1 hq1 sq1 skv4100 d64 score=score+0.001*(kv_idx%100) lse",
    "b2 hq8 hkv2 sq1 skv700 d128 score=where(kv_idx%5!=2,score*r0[h],-inf) lse seed=2",
    "b2 hq16 hkv1 sq1 skv1300 d64 diag=br score=score-r0[h]*abs(q_pos-kv_idx)*0.01 "
    "mask=kv_idx<64|q_pos-kv_idx<300 lens lse seed=3",
    "b1 hq2 hkv1 sq40 skv2100 d64 score=score+r0[abs(q_idx-kv_idx)%50] lse seed=4",
    "b1 hq4 hkv2 sq7 skv900 d32 mask=i0[kv_idx//16]!=2 lse poison seed=5",
    "b1 hq2 sq3 skv900 d32 callback lse",
    // Tiles of every kernel.
    "b1 hq2 sq200 skv333 d64 score=score*0.5+0.01*(q_idx-kv_idx) lse",
    "b1 hq2 sq257 skv300 d64 diag=br mask=kv_idx<=q_pos&(q_pos-kv_idx<50|kv_idx<10) lse poison",
    "b1 hq1 sq70 skv130 d600 dv40 score=2.0*tanh(score)+r0[kv_idx//3] lse seed=3",
    "b1 hq1 sq33 skv70 d128 score=score+r0[kv_idx] data=large lse seed=4",
    "b2 hq6 hkv3 sq33 skv70 d33 dv17 score=score*r0[h] layout=strided data=outlier lse seed=5",
    // Packed sequences, pages, caches.
    "b3 hq4 hkv2 sq33 skv65 d16 packed score=score-0.1*abs(q_idx-kv_idx)+r0[b] lse seed=1",
    "b3 hq4 hkv2 sq33 skv65 d16 packed diag=br mask=kv_idx<=q_pos&i0[b,kv_idx]!=1 lse poison "
    "seed=2",
    "b3 hq2 sq33 skv65 d16 packed score=score+r0[q_len-q_idx,kv_len-kv_idx] "
    "mask=(kv_idx-q_idx)%4!=3 block_mask=16,16 callback seed=3",
    "b2 hq4 hkv2 sq5 skv64 d32 paged page_size=16 diag=br score=score-0.05*abs(q_pos-kv_idx) "
    "mask=kv_idx%9!=4 lse seed=4",
    "b2 hq4 hkv2 sq1 skv96 d32 paged page_size=24 score=score+r0[b,kv_idx] lse seed=5",
    "b3 hq2 sq4 skv64 d32 append=4 diag=br score=score+r0[kv_len-1-kv_idx] "
    "mask=kv_idx<=q_pos|kv_idx%5==0 lse seed=6",
    "b3 hq2 sq4 skv64 d32 cache_leftpad diag=br score=score+0.1*(kv_idx%3)-0.01*kv_len "
    "mask=kv_idx!=1 lse seed=7",
    "b2 hq2 sq4 skv64 d32 cache_batch_idx score=score*(b+1) mask=(kv_idx+b)%3!=0 lse seed=8",
    "b2 hq2 sq9 skv64 d32 tree=9 append=9 rotary=16 score=score+r0[q_idx,h] lse seed=9",
    // Empty sizes.
    "b0 hq2 sq3 skv5 d16 score=score+r0[b] mask=kv_idx!=2 lse",
    "b2 hq2 sq0 skv5 d16 score=score+r0[q_idx] mask=q_idx==kv_idx block_mask=4,4 lse",
    "b2 hq2 sq5 skv0 d16 score=score+r0[kv_idx] mask=q_idx==kv_idx block_mask=4,4 callback sinks "
    "lse",
};

const char* const kFunctionGradCases[] = {
    // Each derivative.
    "b2 hq2 sq33 skv65 d16 score=score*0.7+1.5 saved grad seed=1",
    "b2 hq2 sq33 skv65 d16 score=score*2 saved grad seed=2",
    "b2 hq2 sq33 skv65 d16 score=(score*(q_idx*1000003000)+kv_idx*1000003*score)/1e9 saved grad",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[kv_idx]*2 saved grad seed=1",
    "b2 hq2 sq33 skv65 d16 score=score*score*0.3-score saved grad seed=2",
    "b2 hq2 sq33 skv65 d16 score=score/(score*score+1.0) saved grad seed=3",
    "b2 hq2 sq33 skv65 d16 score=min(score,0.25)*2.0+max(score,-0.5) saved grad seed=4",
    "b2 hq2 sq33 skv65 d16 score=abs(score)-exp(min(score,1.5)) saved grad seed=5",
    "b2 hq2 sq33 skv65 d16 score=log(score*score+0.5)+sqrt(score*score+0.25) saved grad seed=6",
    "b2 hq2 sq33 skv65 d16 score=3.0*tanh(score)+2.0*sigmoid(-score) saved grad seed=7",
    "b2 hq2 sq33 skv65 d16 score=where(score<0.1,score*0.5,score*1.5) saved grad seed=8",
    "b2 hq2 sq33 skv65 d16 score=where(score>0.0,sqrt(score),score*0.1) saved grad seed=9",
    "b2 hq2 sq33 skv65 d16 score=q_idx*0.1-kv_idx*0.05 saved grad seed=10",
    "b2 hq2 sq33 skv65 d16 score=int(score*2.0)*0.25+score saved grad seed=11",
    "b2 hq2 sq33 skv65 d16 score=5.0*tanh(tanh(score)*score/5.0)+tanh(score) lse grad seed=12",
    // Captured tensors: every rank, sums over everything else, one element many times.
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[h] saved grad seed=13",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score*r0[h]+r1[q_idx]*r2[kv_idx] saved grad seed=14",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[h,max(min(q_idx-kv_idx,20),-20)+20] saved grad "
    "seed=15",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[b,h,kv_idx] saved grad seed=16",
    "b2 hq2 sq33 skv65 d16 score=score+r0[b,h,q_idx,kv_idx] saved grad poison seed=17",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score*exp(r0[0])+tanh(r0[1])*r0[2]/(r0[3]*r0[3]+1.0) saved "
    "grad seed=18",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score+r0[i1[kv_idx],i2[b,q_idx]] saved grad seed=19",
    "b2 hq2 sq33 skv65 d16 score=r0[kv_idx]*r0[q_idx]+score*r0[abs(q_idx-kv_idx)] saved grad "
    "seed=20",
    "b2 hq2 sq33 skv65 d16 score=score+r0[h]+r1[h]+r2[b]+r3[b]+r4[kv_idx]+r5[q_idx]+r6[0]+r7[h,b] "
    "saved grad seed=21",
    "b2 hq2 sq33 skv65 d16 score=where(r0[kv_idx]<r1[q_idx],score*r1[q_idx],r0[kv_idx]) saved grad "
    "seed=22",
    "b2 hq2 sq33 skv65 d16 score=score+r0[kv_idx] saved grad seed=14",
    "b2 hq2 sq33 skv65 d16 score=score*2.0 mask=r0[kv_idx]<0.3 saved grad poison seed=24",
    // Masks, and rows and keys that nothing reaches.
    "b2 hq2 sq65 skv127 d16 mask=i0[b,q_idx]==i0[b,kv_idx] saved grad poison seed=25",
    "b2 hq2 sq65 skv127 d16 causal diag=br mask=(q_pos-kv_idx)%3==0 saved grad poison seed=26",
    "b2 hq2 sq65 skv127 d16 mask=kv_idx<17|q_idx>=kv_idx&q_idx>9 block_mask=16,32 saved grad "
    "poison seed=27",
    "b2 hq4 hkv2 sq65 skv127 d16 mask=(q_idx+h)//40==kv_idx//40 block_mask=8,8 sinks lens saved "
    "grad poison seed=28",
    "b2 hq2 sq33 skv65 d16 score=where(score<0.3,score,-inf) sinks saved grad seed=29",
    "b2 hq2 sq33 skv65 d16 score=score*r0[h]+where(kv_idx%4==1,-inf,0.0) saved grad seed=30",
    // With every other edit.
    "b2 hq4 hkv2 sq33 skv65 d16 softcap=4 score=score*1.25+r0[h,kv_idx] bias alibi diag=br sinks "
    "saved grad d_lse seed=31",
    "b2 hq4 hkv2 sq33 skv65 d16 softcap=2 score=score*r0[h]*r1[b] dropout=0.5 bias=1,H,1,Skv "
    "causal diag=tl lse grad delta seed=32",
    "b3 hq2 sq33 skv65 d16 diag=seq score=score-r0[h]*abs(q_pos-kv_idx)*0.1 segments saved grad "
    "poison seed=33",
    "b4 hq2 sq33 skv65 d16 diag=br score=score*1.5-0.1*abs(q_pos-kv_idx)*r0[b] lens window=20,5 "
    "saved grad poison seed=34",
    "b2 hq2 sq33 skv65 d16 scale=-0.4 score=abs(score)*r0[kv_idx] saved grad seed=35",
    // Forms that are recognised.
    "b2 hq2 sq65 skv127 d16 diag=br "
    "score=where(q_pos>=kv_idx&q_pos-kv_idx<30,20.0*tanh(score/20.0),-inf) saved grad poison "
    "seed=36",
    "b2 hq2 sq65 skv127 d16 score=score-0.0625*abs(q_idx-kv_idx) mask=kv_idx<=q_idx saved grad "
    "poison seed=37",
    // Blocks and kernels: several blocks of rows and of keys, wide heads, one row, one key.
    "b1 hq2 sq390 skv400 d8 score=score*0.5+r0[q_idx//50,kv_idx//50] causal diag=br saved grad "
    "poison seed=38",
    "b1 hq2 hkv1 sq500 skv450 d8 mask=q_idx//70==kv_idx//70 score=score*r0[h]*2.0 saved grad "
    "poison seed=39",
    "b1 hq2 sq20 skv70 d300 score=2.0*tanh(score)+r0[kv_idx] saved grad seed=40",
    "b1 hq1 sq9 skv65 d600 score=score*r0[q_idx] saved grad seed=41",
    "b1 hq3 sq1 skv300 d64 score=score*r0[h]+r1[kv_idx] saved grad seed=42",
    "b1 hq3 sq300 skv1 d64 score=score*r0[h]+r1[q_idx] saved grad seed=43",
    "b2 hq3 hkv1 sq35 skv71 d17 dv23 score=score+r0[h,kv_idx] dropout=0.4 mask=kv_idx%3!=1 saved "
    "grad poison seed=44",
    "b1 hq2 sq17 skv70 d16 score=score*0.5+r0[kv_idx] data=large saved grad seed=45",
    // Packed sequences.
    "b3 hq4 hkv2 sq33 skv65 d16 packed score=score*r0[b]-0.1*abs(q_idx-kv_idx)+r1[b,kv_idx] saved "
    "grad seed=46",
    "b3 hq2 sq33 skv65 d16 packed diag=br mask=kv_idx<=q_pos&i0[b,kv_idx]!=1 "
    "score=score+r1[q_len-q_idx] lse grad seed=47",
    // Functions of the host language.
    "b2 hq4 hkv2 sq33 skv65 d16 callback saved grad seed=48",
    "b2 hq4 hkv2 sq33 skv65 d16 score=score*r0[h]+r1[kv_idx] callback mask=kv_idx%7!=3 softcap=3 "
    "bias saved grad seed=49",
    // Empty sizes.
    "b0 hq2 sq3 skv5 d16 score=score*r0[b] saved grad seed=50",
    "b2 hq2 sq0 skv5 d16 score=score*r0[h] saved grad seed=51",
    "b2 hq2 sq5 skv0 d16 score=score*r0[h] mask=kv_idx==0 saved grad seed=52",
};

}  // namespace

std::span<const char* const> function_cases() { return kFunctionCases; }
std::span<const char* const> function_grad_cases() { return kFunctionGradCases; }

}  // namespace regard::test
